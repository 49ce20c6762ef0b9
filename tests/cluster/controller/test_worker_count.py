"""How many workers a job has: one change at a time, asked for by anyone."""

from __future__ import annotations

import pytest

from holdfast.cluster.controller.worker_count import WorkerCount
from holdfast.cluster.happenings import Event, Resized, ResizeFailed
from holdfast.errors import RunError
from holdfast.runtime import Runtime


class Told:
    """A count, and what it told."""

    def __init__(self, workers: int) -> None:
        self.now_s = 10.0
        self.events: list[Event] = []
        runtime = Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: 1000 + self.now_s)
        self.count = WorkerCount(workers, self.hear, runtime)

    def hear(self, event: Event) -> None:
        self.events.append(event)


def test_a_change_is_handed_on_once_and_told_of_when_all_are_at_work() -> None:
    told = Told(2)
    told.count.ask(3)
    assert (told.count.take(), told.count.take()) == (3, None)
    told.count.settled()  # at work, but not yet changed
    told.now_s += 4
    told.count.changed(3)
    told.count.settled()
    told.count.settled()
    assert told.events == [Resized(workers=3, before=2, at_s=1014.0, took_s=4.0)]


def test_the_number_that_there_is_changes_nothing() -> None:
    told = Told(2)
    told.count.ask(2)
    assert told.count.take() is None


def test_a_second_change_is_refused_until_the_first_has_ended() -> None:
    told = Told(2)
    told.count.ask(3)
    with pytest.raises(RunError, match="a change to 3 workers is under way"):
        told.count.ask(3)
    told.count.failed(3, "no space left")
    assert told.events == [ResizeFailed(workers=3, problem="no space left", at_s=1010.0)]
    told.count.ask(1)
    assert told.count.take() == 1


def test_whoever_hears_of_a_change_may_ask_for_the_next_one() -> None:
    told = Told(1)
    hear = told.hear

    def go_on(event: Event) -> None:
        hear(event)
        told.count.ask(1)

    told.count = WorkerCount(1, go_on)
    told.count.ask(2)
    told.count.take()
    told.count.changed(2)
    told.count.settled()
    assert told.count.take() == 1


def test_nothing_changes_after_the_end() -> None:
    told = Told(1)
    told.count.close()
    with pytest.raises(RunError, match="the job has ended"):
        told.count.ask(2)
