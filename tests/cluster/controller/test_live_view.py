"""The live view, drawn on a recording console from scripted events and reports; and who else hears of events."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
from rich.console import Console

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.audience import Audience, log
from holdfast.cluster.controller.live_view import LiveView
from holdfast.cluster.controller.losses import Losses
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import (
    Committed,
    Died,
    Event,
    LadderChosen,
    LostSamples,
    Paused,
    Recovered,
    Redundant,
    Replaced,
    Resized,
    ResizeFailed,
    SaveFailed,
    Started,
    WentBack,
)
from holdfast.cluster.train.metrics import Metrics
from holdfast.policy import PLS
from holdfast.runtime import Runtime

DEAD = Member(Role.SERVER, 1, 1)
NEW = Member(Role.SERVER, 1, 2)


class Stage:
    """A view of a job that is only told."""

    def __init__(self, *, width: int = 100, servers: int = 2, workers: int = 2) -> None:
        self.now_s = 100.0
        self.runtime = Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: self.now_s)
        self.accounts = Accounts(
            Losses(PLS(0.1), servers=servers, stored={"pls": 0.03}), synchronous=False, runtime=self.runtime
        )
        self.console = Console(file=io.StringIO(), width=width, record=True)
        self.view = LiveView(
            self.accounts, servers=servers, workers=workers, console=self.console, runtime=self.runtime
        )

    def work(self, seconds: int) -> None:
        """Reports of everyone, once a second."""
        for _ in range(seconds):
            self.now_s += 1.0
            done = self.now_s - 100
            for index in range(2):
                server = json.dumps({"pulled_rows": 300 * done, "pushed_rows": 200 * done}).encode()
                self.accounts.hear(Member(Role.SERVER, index, 1), server)
                worker = {"steps": int(done), "samples": 256 * done, "loss": 0.5, "behind": 1 + index}
                self.accounts.hear(Member(Role.WORKER, index, 1), json.dumps(worker).encode())

    def shown(self) -> str:
        self.console.print(self.view.page())
        return self.console.export_text()


def test_the_view_shows_speeds_staleness_checkpoint_and_events() -> None:
    stage = Stage()
    assert "starting" in stage.shown()
    stage.view.tell(Started(at_s=100.0, took_s=2.5))
    stage.work(4)
    sums = Metrics(losses=1.0, steps=2)
    sums.positives[9], sums.negatives[3] = 1, 1
    stage.accounts.hear(
        Member(Role.WORKER, 0, 1), json.dumps({"steps": 4, "samples": 1024, "sums": sums.to_plain()}).encode()
    )
    stage.view.tell(Paused(save=1, step=8, pause_s=0.05, at_s=104.0))
    stage.view.tell(Committed(save=1, checkpoint="s8-t1-abc", step=8, at_s=104.0))
    stage.now_s += 1
    shown = stage.shown()
    assert "everyone is at work, after 2.5 s" in shown and "committed s8-t1-abc" in shown
    assert "step 8, 1 s ago" in shown
    assert "by up to 2 of their worker's steps" in shown
    assert "1.0000, when last saved" in shown  # AUC
    assert re.search(r"PLS +0\.03", shown)
    assert "samples/s    384" in shown  # 512 a second, in three seconds of four


@pytest.mark.parametrize("open_ends", [os.openpty, os.pipe], ids=["terminal", "pipe"])
def test_a_view_whose_terminal_goes_away_ends_no_job_and_events_are_logged(
    open_ends: Callable[[], tuple[int, int]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = open_ends()
    stage = Stage()
    with suppress(OSError), open(writer, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        view = LiveView(stage.accounts, servers=2, workers=2, runtime=stage.runtime)
        with view:
            os.close(reader)
            stage.now_s += 1
            view.turn()
        assert sys.stderr is stderr
        view.turn()
        view.tell(Died(member=DEAD, how="killed", at_s=2.0))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the live view has ended",
        "server 1 (1) died",
    ]


def test_a_death_is_seen_until_somebody_else_is_at_work() -> None:
    stage = Stage()
    stage.view.tell(Started(at_s=100.0, took_s=2.5))
    stage.view.tell(Died(member=DEAD, how="killed by signal 9", at_s=101.0))
    shown = stage.shown()
    assert "being replaced" in shown and "server 1 (1) died: killed by signal 9" in shown
    stage.view.tell(Replaced(member=NEW, by_spare=True, at_s=102.0, took_s=0.4))
    stage.view.tell(LostSamples(member=NEW, steps=31, pls=0.0125, at_s=103.0))
    shown = stage.shown()
    assert "being replaced" not in shown
    assert "server 1 (2) is at work (a spare), 0.4 s after the death" in shown
    assert "its rows lost 31 steps; PLS 0.0125" in shown


def test_the_ladder_is_shown_with_redundancy_and_the_last_rung() -> None:
    stage = Stage(width=140)
    assert re.search(r"ladder +-", stage.shown())
    stage.view.tell(LadderChosen(rungs="parity (4 + 1) → partial → full", why="as asked for", at_s=99.0))
    shown = stage.shown()
    assert "parity (4 + 1) → partial → full" in shown and "being built" in shown and "none yet" in shown
    stage.view.tell(Redundant(records=9, at_s=101.0, took_s=1.5))
    assert "whole, after 1.5 s" in stage.shown()
    stage.view.tell(Died(member=DEAD, how="killed by signal 9", at_s=101.0))
    assert "being rebuilt" in stage.shown()
    known = dict(member=NEW, at_s=102.0, took_s=0.4)
    stage.view.tell(Recovered(**known, rung="parity", rows=9, saved_rows=0))  # type: ignore[arg-type]
    assert "parity, 0.4 s, nothing lost (1 by parity)" in stage.shown()
    cost = dict(lost_steps=7, lost_samples=448.0, lost_pls=0.002)
    stage.view.tell(Recovered(**known, rung="partial", rows=0, saved_rows=9, **cost))  # type: ignore[arg-type]
    shown = stage.shown()
    assert "partial, 0.4 s, 7 steps, PLS 0.002 (1 by parity, 1 by partial)" in shown
    assert "rung partial: 9 rows came from saves, 0 from parity, in 0.4 s; 7 steps, 448 samples are lost" in shown


def test_who_joins_is_shown_and_who_leaves_is_not() -> None:
    stage = Stage(workers=1)
    assert "worker 1" not in stage.shown()
    stage.view.tell(Resized(workers=3, before=1, at_s=101.0, took_s=2.0))
    shown = stage.shown()
    assert "worker 2" in shown and "the number of workers is 3 instead of 1, after 2.0 s" in shown
    stage.view.tell(Resized(workers=2, before=3, at_s=102.0, took_s=2.0))
    stage.view.tell(ResizeFailed(workers=4, problem="no space left", at_s=103.0))
    shown = stage.shown()
    assert "worker 1" in shown and "worker 2" not in shown
    assert "the number of workers does not become 4: no space left" in shown


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_the_view_fits_any_width(width: int) -> None:
    stage = Stage(width=width)
    stage.work(2)
    stage.view.tell(Died(member=DEAD, how="a long story\n" + "of many words " * 50, at_s=101.0))
    assert all(len(line) <= width for line in stage.shown().splitlines())


def test_of_many_processes_those_that_are_being_replaced_are_shown() -> None:
    stage = Stage(servers=40, workers=40)
    stage.view.tell(Died(member=Member(Role.SERVER, 33, 1), how="", at_s=101.0))
    shown = stage.shown()
    assert "server 33" in shown and "and 68 more" in shown


def test_text_from_elsewhere_does_not_steer_the_terminal() -> None:
    stage = Stage()
    stage.view.tell(SaveFailed(save=1, problem="[bold]\x1b[2J", at_s=101.0))
    assert "[bold]\\x1b[2J" in stage.shown()


def test_it_draws_twice_a_second_and_once_more_at_the_end() -> None:
    stage = Stage()
    with stage.view as view:
        for _ in range(20):
            stage.now_s += 0.1
            view.turn()
    assert stage.console.export_text().count("last checkpoint") >= 1


EVENTS: list[Event] = [
    Started(at_s=1.0, took_s=2.0),
    Died(member=DEAD, how="killed", at_s=2.0),
    WentBack(checkpoint="", lost_steps=7, at_s=3.0),
]


def test_a_hook_that_raises_gets_every_event_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def hook(event: Event) -> None:
        heard.append(event)
        raise ValueError("no")

    ours: list[Event] = []
    audience = Audience(hook, [ours.append])
    with caplog.at_level(logging.INFO, "holdfast"):
        for event in EVENTS:
            audience.tell(event)
    assert heard == ours == EVENTS
    assert [record.message for record in caplog.records if "raised" in record.message] == [
        f"the hook on_event={hook.__qualname__} raised; training continues, and further errors from it are not logged"
    ]


def test_where_nothing_is_shown_events_are_logged_and_deaths_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        for event in EVENTS:
            log(event)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "everyone is at work, after 2.0 s"),
        ("WARNING", "server 1 (1) died: killed"),
        ("INFO", "everyone goes back to the beginning: 7 steps are taken again"),
    ]
