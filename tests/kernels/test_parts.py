"""Work on many rows is shared by threads, and waits for none that has nothing to do with it."""

from __future__ import annotations

import threading

import numpy as np

from holdfast.kernels.parts import in_parts, in_shares, start_threads
from holdfast.kernels.runs import Runs

ROWS, THREADS, PATIENCE_S = 40_000, 2, 60.0


def test_every_part_is_done_once() -> None:
    done = np.zeros(ROWS, np.int64)
    parts = in_parts(ROWS, lambda part: (np.add.at(done, part, 1), part)[1], threads=THREADS, part_rows=1000)
    assert (done == 1).all() and sum(part.stop - part.start for part in parts) == ROWS


def test_every_share_is_done_once() -> None:
    runs, done = Runs(np.array([5, 90_000]), np.array([ROWS, 777])), np.zeros(100_000, np.int64)

    def work(share: Runs, at: slice) -> None:
        assert share.size == at.stop - at.start
        np.add.at(done, share.rows(), 1)

    in_shares(runs, work, row_bytes=512, threads=THREADS)
    assert set(np.flatnonzero(done)) == set(runs.rows()) and done.max() == 1


def test_who_shares_work_ends_although_threads_are_busy_with_anothers() -> None:
    is_done, are_busy = threading.Event(), threading.Barrier(THREADS + 1)

    def hold(part: slice) -> bool:
        are_busy.wait(PATIENCE_S)
        return is_done.wait(PATIENCE_S)

    held: list[bool] = []
    other = threading.Thread(
        target=lambda: held.extend(in_parts(2000, hold, threads=THREADS, part_rows=1000)), daemon=True
    )
    other.start()
    are_busy.wait(PATIENCE_S)  # each of the threads has one of the two parts
    found = in_parts(ROWS, lambda part: part.stop - part.start, threads=THREADS, part_rows=1000)
    is_done.set()
    other.join(PATIENCE_S)
    assert sum(found) == ROWS and held == [True, True]


def test_threads_that_were_started_share_the_work() -> None:
    start_threads(4)
    before, together = threading.active_count(), threading.Barrier(4)
    found = in_parts(4000, lambda part: together.wait(PATIENCE_S), threads=4, part_rows=1000)
    assert sorted(found) == [0, 1, 2, 3] and threading.active_count() == before
