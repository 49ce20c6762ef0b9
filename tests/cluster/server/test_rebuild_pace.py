"""How many blocks a server asks for at a time, and how long it rests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.cluster.server.rebuild_pace import FAST_ASKED, RebuildPace
from holdfast.runtime import SYSTEM, Runtime


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    @property
    def runtime(self) -> Runtime:
        return replace(SYSTEM, monotonic_s=lambda: self.now_s)


def test_a_gentle_rebuild_takes_a_small_share_of_the_time_however_long_answers_take() -> None:
    watch = Watch()
    pace = RebuildPace(is_fast=False, runtime=watch.runtime)
    worked_s = 0.0
    for _ in range(1000):
        watch.now_s += pace.patience_s(10.0, asked=0)
        assert pace.may_ask(asked=0)
        watch.now_s += 0.5  # until the answer comes
        worked_s += 0.001
        pace.worked(0.001)
    assert worked_s / (watch.now_s - 100.0) <= 0.05


def test_a_gentle_rebuild_asks_for_a_few_blocks_at_a_time() -> None:
    pace = RebuildPace(is_fast=False, runtime=Watch().runtime)
    assert pace.may_ask(asked=3) and not pace.may_ask(asked=4)
    assert pace.patience_s(0.1, asked=3) == 0.0 and pace.patience_s(0.1, asked=4) == 0.1


def test_where_nothing_is_left_to_ask_for_it_waits_for_messages() -> None:
    pace = RebuildPace(is_fast=False, runtime=Watch().runtime)
    pace.has_asked_all = True
    assert pace.patience_s(0.1, asked=0) == 0.1


def test_work_that_comes_while_it_rests_makes_the_rest_longer() -> None:
    watch = Watch()
    pace = RebuildPace(is_fast=False, runtime=watch.runtime)
    pace.worked(0.01)
    once_s = pace.patience_s(10.0, asked=0)
    pace.worked(0.01)
    assert pace.patience_s(10.0, asked=0) == pytest.approx(2 * once_s)
    assert not pace.may_ask(asked=0)
    watch.now_s += 2 * once_s + 1e-6
    assert pace.may_ask(asked=0)


@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_fast_or_urgent_rebuild_never_rests(is_urgent: bool) -> None:
    pace = RebuildPace(is_fast=not is_urgent, runtime=Watch().runtime, is_urgent=is_urgent)
    pace.worked(10.0)
    assert pace.may_ask(asked=FAST_ASKED - 1) and not pace.may_ask(asked=FAST_ASKED)
