"""The user's function hears how the job goes, every few seconds, and cannot harm it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

import pytest

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.losses import Losses
from holdfast.cluster.controller.reporter import Reporter
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.progress import Progress
from holdfast.runtime import Runtime


@dataclass
class Clock:
    now_s: float = 0.0


def accounts_at(runtime: Runtime) -> Accounts:
    return Accounts(Losses(None, servers=2, stored=None), synchronous=False, runtime=runtime)


def test_progress_is_told_every_five_seconds() -> None:
    clock = Clock()
    runtime = Runtime(monotonic_s=lambda: clock.now_s, wall_s=lambda: 1e9 + clock.now_s)
    accounts = accounts_at(runtime)
    heard: list[Progress] = []
    reporter = Reporter(accounts, heard.append, runtime=runtime)
    for second in range(11):
        clock.now_s = float(second)
        told = {"steps": second, "samples": 100 * second, "behind": 1, "loss": 0.5}
        accounts.hear(Member(Role.WORKER, 0, 1), json.dumps(told).encode())
        accounts.hear(Member(Role.SERVER, 0, 1), json.dumps({"pulled_rows": 30 * second}).encode())
        reporter.turn()
        reporter.turn()
    assert [each.step for each in heard] == [5, 10]
    last = heard[-1]
    assert (last.samples_per_s, last.rows_per_s) == (pytest.approx(100), pytest.approx(30))
    assert (last.behind, last.loss, last.pls, last.at_s) == (1, 0.5, None, 1e9 + 10)


def test_a_function_that_raises_is_told_of_once_and_a_job_without_one_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    runtime = Runtime(monotonic_s=lambda: clock.now_s)

    def broken(progress: Progress) -> None:
        raise ConnectionError

    reporters = [Reporter(accounts_at(runtime), function, runtime=runtime) for function in (broken, None)]
    with caplog.at_level(logging.WARNING, "holdfast"):
        for second in (6, 12, 18):
            clock.now_s = float(second)
            for reporter in reporters:
                reporter.turn()
    assert ["on_progress=" in record.message for record in caplog.records] == [True]
