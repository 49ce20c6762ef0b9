"""Any server or worker of a protected job may be killed at any moment: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.processes import tally, wide
from tests.cluster.processes.storm import (
    SERVERS,
    Start,
    assert_as_undisturbed,
    assert_counted_once,
    counted,
    in_step,
)


def drawn(seed: int, *, servers: int, workers: int) -> list[str]:
    """Whom to strike: so many servers and workers, in any order."""
    draw = random.Random(seed)
    names = [f"server-{draw.randrange(SERVERS)}" for _ in range(servers)]
    names += [f"worker-{draw.randrange(tally.WORKERS)}" for _ in range(workers)]
    return draw.sample(names, len(names))


def test_steps_whose_servers_and_worker_are_killed_come_to_what_they_would_have_come_to(start_job: Start) -> None:
    assert wide.smallest_message_bytes(workers=1, servers=SERVERS) > wide.UNCOPIED_BYTES
    storm = in_step(start_job)
    storm.strike_all(["server-1", "server-0", "worker-0", "server-2", "server-1"])
    assert_as_undisturbed(storm)
    assert storm.rungs.count("parity") >= 3  # all, but for one that may have died within a step of the worker


def test_every_push_counts_once_whoever_is_killed(start_job: Start) -> None:
    storm = counted(start_job)
    storm.strike_all(["server-1", "worker-1", "server-0"])
    assert_counted_once(storm)
    assert storm.rungs == ["parity", "parity"] and not storm.lost_steps
    spoil(storm.job.gate.folder)
    assert storm.wrong_rows() == 1  # so the audit finds what is wrong


def spoil(folder: Path) -> None:
    """Change one bit of one row, in the last that a server showed of it."""
    newest = max(folder.glob("audit-*-1.npz"), key=lambda path: path.stat().st_mtime_ns)
    kept = dict(np.load(newest))
    kept["rows 0"][5, 3] ^= 1 << 7
    with newest.open("wb") as file:
        np.savez(file, **kept)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_servers_and_ten_workers_killed_in_step_change_nothing(start_job: Start) -> None:
    storm = in_step(start_job, workers=2, seed=1)
    storm.strike_all(drawn(1, servers=50, workers=10))
    assert_as_undisturbed(storm)
    assert storm.rungs.count("parity") >= 40


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_push_counts_once_over_fifty_deaths_of_servers_and_ten_of_workers(start_job: Start) -> None:
    storm = counted(start_job, seed=2)
    storm.strike_all(drawn(2, servers=50, workers=10))
    assert_counted_once(storm)
    assert set(storm.rungs) == {"parity"} and not storm.lost_steps
