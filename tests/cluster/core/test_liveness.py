"""Who is overdue."""

from __future__ import annotations

from dataclasses import replace

from holdfast.cluster.core.liveness import Liveness
from holdfast.cluster.core.members import Member, Role

ONE, OTHER = Member(Role.SERVER, 0, 1), Member(Role.SERVER, 1, 1)


def ticking(liveness: Liveness, start_s: int, end_s: int) -> None:
    for now_s in range(start_s, end_s + 1):
        liveness.tick(now_s)


def test_a_member_is_overdue_once_it_is_silent_for_longer_than_the_timeout() -> None:
    liveness = Liveness(timeout_s=10)
    liveness.watch(ONE, 0)
    liveness.watch(OTHER, 0)
    ticking(liveness, 0, 15)
    assert liveness.heard(ONE, 9)
    assert liveness.overdue(10) == []
    assert liveness.overdue(15) == [OTHER]
    assert liveness.overdue(20) == [ONE, OTHER] or liveness.overdue(20) == [OTHER, ONE]


def test_a_process_that_starts_has_more_time_until_its_first_beat_and_not_after() -> None:
    liveness = Liveness(timeout_s=10)
    liveness.watch(ONE, 0, grace_s=30)
    assert liveness.overdue(39) == []
    assert liveness.overdue(41) == [ONE]
    liveness.watch(OTHER, 0, grace_s=30)
    liveness.heard(OTHER, 35)
    assert OTHER not in liveness.overdue(45)
    assert OTHER in liveness.overdue(46)


def test_nobody_counts_on_who_is_not_watched_or_was_forgotten() -> None:
    liveness = Liveness(timeout_s=10)
    assert not liveness.heard(ONE, 0)
    liveness.watch(ONE, 0)
    liveness.forget(ONE)
    assert not liveness.heard(ONE, 1)
    assert liveness.overdue(100) == []


def test_time_in_which_the_watcher_was_stopped_is_nobodys_silence() -> None:
    liveness = Liveness(timeout_s=10)
    liveness.watch(ONE, 0)
    ticking(liveness, 0, 3)
    liveness.tick(60)
    assert liveness.overdue(60) == []
    ticking(liveness, 61, 68)
    assert liveness.overdue(68) == [ONE]


def test_a_long_grace_does_not_hide_a_death_after_the_first_beat() -> None:
    liveness = Liveness(timeout_s=10)
    liveness.watch(ONE, 0, grace_s=100)
    liveness.heard(ONE, 5)
    assert liveness.overdue(16) == [ONE]


def test_a_member_that_was_told_to_go_on_as_another_is_counted_on_while_that_one_is() -> None:
    liveness = Liveness(timeout_s=10)
    last = Member(Role.SERVER, 0, 3)
    liveness.watch(ONE, 0)
    liveness.goes_on(ONE, OTHER, 5, grace_s=5)
    liveness.goes_on(OTHER, last, 6, grace_s=5)
    assert liveness.heard(ONE, 15) and liveness.heard(OTHER, 15)  # neither has heard of it yet
    assert liveness.overdue(30) == [] and liveness.overdue(31) == [last]
    liveness.forget(last)
    assert not liveness.heard(ONE, 32) and not liveness.heard(OTHER, 32)


def test_a_member_that_does_not_hear_for_long_that_it_is_another_lives_as_long_as_it_beats() -> None:
    liveness = Liveness(timeout_s=10)
    next_life = replace(ONE, incarnation=2)
    liveness.watch(ONE, 0)
    liveness.goes_on(ONE, next_life, 0, grace_s=5)
    for now_s in range(0, 200, 5):
        assert liveness.heard(ONE, now_s)
    assert liveness.overdue(210) == [] and liveness.overdue(211) == [next_life]
    assert liveness.heard(next_life, 205)
    assert liveness.overdue(215) == [] and liveness.overdue(216) == [next_life]


def test_who_went_back_counts_as_who_it_is_now_and_not_as_who_it_was() -> None:
    liveness = Liveness(timeout_s=10)
    life = ONE
    liveness.watch(life, 0)
    for incarnation in range(2, 100):
        before, life = life, replace(ONE, incarnation=incarnation)
        liveness.goes_on(before, life, 0, grace_s=5)
        assert liveness.heard(before, 0) and not liveness.was_heard(life)
        assert liveness.heard(life, 0) and liveness.was_heard(life) and not liveness.heard(before, 0)
    assert not liveness._next_lives  # a job may go back for weeks
