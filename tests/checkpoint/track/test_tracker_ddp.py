from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = 2
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
def test_no_rank_misses_a_row_that_another_rank_looked_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.checkpoint.track.ddp_tracker_worker"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(tmp_path / "store")],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, "\n".join(outputs)
    assert all("cases passed" in output for output in outputs)
