"""When a place that dies again and again is given up."""

from __future__ import annotations

import pytest

from holdfast.cluster.controller.streaks import Mark, Streaks
from holdfast.cluster.core.members import Member, Role
from holdfast.runtime import Runtime

WORKER, SERVER = Member(Role.WORKER, 1, 1), Member(Role.SERVER, 0, 1)


class Watch:
    """Streaks on a clock that is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.streaks = Streaks(Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: self.now_s))

    def dies(self, *steps: int, member: Member = WORKER, checkpoint: int = 0, apart_s: float = 1.0) -> str:
        """A place dies whenever the job is at one of these steps; the verdict in the end."""
        for each in steps:
            self.now_s += apart_s
            self.streaks.died(member, Mark(checkpoint=checkpoint, steps=each))
        return self.streaks.verdict(member)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_nobody_is_given_up_while_the_job_comes_further(watch: Watch) -> None:
    assert watch.dies(*range(100)) == ""
    assert watch.dies(*range(100), member=SERVER) == ""


def test_a_place_is_given_up_that_dies_on_the_spot(watch: Watch) -> None:
    assert watch.dies(7, 7, 7, 7) == ""
    assert watch.dies(7) == "worker 1 died 5 times in a row without getting anywhere"


def test_a_step_in_between_is_enough(watch: Watch) -> None:
    assert watch.dies(7, 7, 7, 7, 8, 8, 8, 8) == ""
    assert "5 times" in watch.dies(8)


def test_every_place_dies_for_itself(watch: Watch) -> None:
    for _ in range(4):
        assert watch.dies(7) == "" == watch.dies(7, member=SERVER)
    assert watch.streaks.verdict(Member(Role.WORKER, 0, 3)) == ""
    assert "worker 1" in watch.dies(7) and watch.streaks.verdict(SERVER) == ""


def test_a_place_is_given_up_that_takes_the_same_steps_for_ever(watch: Watch) -> None:
    assert watch.dies(*[90, 40] * 9, 90) == ""
    assert "no further than before the first" in watch.dies(41)


def test_a_checkpoint_gains_something_at_an_earlier_step(watch: Watch) -> None:
    assert watch.dies(*[90, 40] * 9) == ""
    assert watch.dies(30, checkpoint=1) == ""
    assert watch.dies(*[20, 30] * 9, checkpoint=1) == ""


def test_deaths_that_are_far_apart_have_nothing_to_do_with_each_other(watch: Watch) -> None:
    assert watch.dies(*[7] * 50, apart_s=601.0) == ""


def test_the_next_process_starts_at_once_and_after_more_deaths_later_and_later(watch: Watch) -> None:
    pauses = [watch.streaks.pause_s(WORKER)]
    for _ in range(8):
        watch.dies(7)
        pauses.append(watch.streaks.pause_s(WORKER))
    assert pauses[:2] == [0.0, 0.0] and 0.0 < pauses[2] < pauses[3] < pauses[4] and pauses == sorted(pauses)
    watch.dies(8)
    assert watch.streaks.pause_s(WORKER) == 0.0


def test_a_place_that_has_worked_well_begins_anew(watch: Watch) -> None:
    watch.dies(7, 7, 7, 7)
    watch.streaks.forget(WORKER)
    assert watch.streaks.length(WORKER) == 0 and watch.dies(7) == ""
