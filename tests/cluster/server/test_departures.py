"""When differences and acknowledgements leave a server."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.notes import Differences
from holdfast.cluster.core.parity_messages import Absorbed, Agreed, Difference
from holdfast.cluster.server.departures import Departures
from holdfast.runtime import Runtime

HOST, MEMBER = Member(Role.SERVER, 1, 1), Member(Role.SERVER, 2, 1)
AGREED = Agreed(0, 1)


def difference(number: int, worker: int = 0) -> Difference:
    return Difference(worker, number, ())


class Held:
    """Departures, and a clock that stands still."""

    def __init__(self, *, is_waited_for: bool = False) -> None:
        self.now_s = 100.0
        runtime = Runtime(monotonic_s=lambda: self.now_s)
        self.back = Departures(is_waited_for=is_waited_for, runtime=runtime)

    def wait(self) -> None:
        self.now_s += self.back.patience_s(1.0)


def test_what_waits_for_a_member_leaves_as_one_message_in_its_order() -> None:
    held = Held()
    sends = [Send(HOST, difference(5)), Send(MEMBER, difference(5)), Send(HOST, Absorbed(1)), Send(HOST, Absorbed(2))]
    assert list(held.back.passed(sends)) == []
    assert list(held.back.passed([Send(HOST, difference(9, worker=1))])) == []
    assert held.back.due() == []
    held.wait()
    assert held.back.due() == [
        Send(HOST, Differences((difference(5), difference(9, worker=1)), 2)),
        Send(MEMBER, Differences((difference(5),), 0)),
    ]
    held.wait()
    assert held.back.due() == []


def test_a_worker_that_has_pushed_again_waits_no_longer() -> None:
    held = Held().back
    sends = [Send(HOST, difference(5)), Send(HOST, difference(9, worker=1)), Send(HOST, difference(6))]
    together = (difference(5), difference(9, worker=1), difference(6))
    assert list(held.passed(sends)) == [Send(HOST, Differences(together, 0))]


def test_nothing_overtakes_on_its_stream_what_waits() -> None:
    held = Held().back
    sends = [Send(HOST, difference(5)), Send(HOST, Absorbed(3)), Send(MEMBER, AGREED), Send(HOST, AGREED)]
    expected = [Send(MEMBER, AGREED), Send(HOST, Differences((difference(5),), 3)), Send(HOST, AGREED)]
    assert list(held.passed(sends)) == expected
    assert list(held.passed([Send(HOST, AGREED)])) == [Send(HOST, AGREED)]


def test_an_acknowledgement_that_no_difference_takes_along_leaves_after_a_while() -> None:
    held = Held()
    list(held.back.passed([Send(HOST, Absorbed(1))]))
    assert held.back.due() == []
    assert 0 < held.back.patience_s(1.0) < 0.1
    held.wait()
    assert held.back.due() == [Send(HOST, Absorbed(1))]
    assert held.back.patience_s(1.0) == 1.0


def test_where_a_step_waits_for_them_differences_and_acknowledgements_are_due_at_once() -> None:
    held = Held(is_waited_for=True).back
    list(held.passed([Send(HOST, difference(4)), Send(MEMBER, Absorbed(1))]))
    assert held.patience_s(1.0) == 0.0
    assert held.due() == [Send(HOST, Differences((difference(4),), 0)), Send(MEMBER, Absorbed(1))]
