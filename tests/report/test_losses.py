"""Work that failures cost, apart from time in which nobody trained."""

from __future__ import annotations

from holdfast.events import Happening, HistoryEvent
from holdfast.report.losses import Losses, losses
from holdfast.types import CheckpointInfo, Kind


def saved(step: int, at_s: float, *, term: int = 1, abandoned: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        id=f"s{step}-{term}",
        step=step,
        term=term,
        kind=Kind.FULL,
        parent=None,
        base=None,
        created_s=at_s,
        size_bytes=1,
        rows_written=1,
        full_bytes=1,
        abandoned=abandoned,
    )


def event(what: Happening, at_s: float, *, term: int = 1, idle_s: float | None = None) -> HistoryEvent:
    return HistoryEvent(what=what, at_s=at_s, exact=True, term=term, writer=None, from_step=None, idle_s=idle_s)


BEGAN = event(Happening.BEGAN, 0)
SAVES = [saved(1, 600), saved(2, 1200), saved(3, 1230)]


def test_a_long_break_is_one_interval_of_work_and_else_idle() -> None:
    took_over = event(Happening.TOOK_OVER, 9000, term=2, idle_s=9000 - 1230)
    assert losses([BEGAN, took_over], SAVES) == (None, Losses(lost_s=600, idle_s=7770 - 600))


def test_a_break_shorter_than_an_interval_may_all_have_been_work() -> None:
    took_over = event(Happening.TOOK_OVER, 1330, term=2, idle_s=100)
    assert losses([BEGAN, took_over], SAVES)[1] == Losses(lost_s=100, idle_s=0)


def test_of_a_single_save_without_a_beginning_all_may_have_been_work() -> None:
    took_over = event(Happening.TOOK_OVER, 1330, term=3, idle_s=730)
    assert losses([took_over], [saved(1, 600, term=2)]) == (Losses(lost_s=730),)


def test_going_back_loses_what_led_to_the_abandoned_checkpoints() -> None:
    took_over = event(Happening.TOOK_OVER, 1230, term=2, idle_s=0)
    went_back = event(Happening.WENT_BACK, 1240, term=2)
    infos = [saved(1, 600), saved(2, 1200, abandoned=True), saved(3, 1230, abandoned=True), saved(2, 2000, term=2)]
    found = losses([BEGAN, took_over, went_back], infos)
    assert found[2] == Losses(lost_s=630)
    assert found[1] == Losses()


def test_each_abandoned_checkpoint_is_counted_once() -> None:
    back = [event(Happening.WENT_BACK, at_s, term=1) for at_s in (700, 1300)]
    infos = [saved(1, 600, abandoned=True), saved(2, 1200, abandoned=True)]
    assert losses([BEGAN, *back], infos) == (None, Losses(lost_s=600), Losses(lost_s=600))


def test_losses_add_up() -> None:
    assert Losses(lost_s=1, idle_s=2) + Losses(lost_s=3, idle_s=4) == Losses(lost_s=4, idle_s=6)
