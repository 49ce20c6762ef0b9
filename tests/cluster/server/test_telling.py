"""When hosts are told of what was applied: once no push has come for a moment, and not before."""

from __future__ import annotations

from holdfast.cluster.server.telling import Telling
from holdfast.runtime import Runtime


class Told:
    """Telling, and a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.back = Telling(Runtime(monotonic_s=lambda: self.now_s))

    def wait(self, share: float = 1.0) -> None:
        self.now_s += share * self.back.patience_s(1.0)


def test_hosts_are_told_when_no_other_push_comes() -> None:
    told = Told()
    assert not told.back.is_due(3)
    told.wait()
    assert told.back.is_due(3)


def test_another_push_begins_the_wait_again() -> None:
    told = Told()
    told.back.is_due(1)
    told.wait(0.6)
    assert not told.back.is_due(2)
    told.wait(0.6)
    assert not told.back.is_due(2)
    told.wait()
    assert told.back.is_due(2)


def test_nothing_is_waited_for_where_hosts_know_everything() -> None:
    told = Told()
    assert told.back.patience_s(0.7) == 0.7
    told.back.is_due(2)
    assert told.back.patience_s(0.7) < 0.7
    told.wait()
    assert not told.back.is_due(0)
    assert told.back.patience_s(0.7) == 0.7
