"""The script of the guide's page runs as it stands there: twice, with another number of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import GUIDE, sections


@pytest.mark.timeout(300)  # each start imports TorchRec anew
def test_the_guides_script_trains_and_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    page = {section.title: section for section in sections(GUIDE / "torchrec.md")}
    script = tmp_path / "train.py"
    script.write_text(page["A complete script"].blocks[0].text)
    assert "steps 0 to 20" in run(script, tmp_path, ranks=2)
    assert "rank 0 of 1: steps 20 to 40" in run(script, tmp_path, ranks=1)


def run(script: Path, folder: Path, ranks: int) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(script), str(folder / "run")],
        capture_output=True,
        text=True,
        timeout=140,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
