"""In which order a server handles what arrives, and when it acknowledges."""

from __future__ import annotations

from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import CallOff, Message, Pull, Push, Send
from holdfast.cluster.core.parity_messages import Absorbed, Agreed, Difference
from holdfast.cluster.core.progress import BEGINNING
from holdfast.cluster.server.acknowledgements import Acknowledgements
from holdfast.cluster.server.arrivals import Arrivals
from holdfast.runtime import Runtime

WORKER, OTHER = Member(Role.WORKER, 0, 1), Member(Role.WORKER, 1, 1)
HOST, MEMBER = Member(Role.SERVER, 1, 1), Member(Role.SERVER, 2, 1)
PULL, PUSH = Pull(1, (), 0), Push(1, (), None, BEGINNING)


def difference(number: int, absorbed: int = 0) -> Difference:
    return Difference(0, number, (), 0, absorbed)


class Held:
    """Acknowledgements, and a clock that stands still."""

    def __init__(self, *, is_waited_for: bool = False) -> None:
        self.now_s = 100.0
        runtime = Runtime(monotonic_s=lambda: self.now_s)
        self.back = Acknowledgements(is_waited_for=is_waited_for, runtime=runtime)


class Inbox:
    """Gives one batch after the other."""

    def __init__(self, *batches: list[tuple[Member, Message]]) -> None:
        self._batches = list(batches)
        self.timeouts_s: list[float] = []

    def receive(self, timeout_s: float) -> list[tuple[Member, Message]]:
        self.timeouts_s.append(timeout_s)
        return self._batches.pop(0) if self._batches else []


def test_workers_come_before_servers_however_many_of_these_have_arrived() -> None:
    first, second, third = ((HOST, difference(number)) for number in (1, 2, 3))
    inbox = Inbox([first, second, (CONTROLLER, CallOff(1))], [third, (WORKER, PULL)])
    arrivals = Arrivals(inbox.receive)
    assert arrivals.next(0.1) == [(CONTROLLER, CallOff(1)), first]
    assert arrivals.next(0.1) == [(WORKER, PULL), second]
    assert arrivals.next(0.1) == [third]
    assert arrivals.next(0.1) == []
    assert inbox.timeouts_s == [0.1, 0.0, 0.0, 0.1]  # it waits where nothing is left to do


def test_pulls_come_before_pushes_of_others_and_behind_those_of_their_own_worker() -> None:
    arrivals = Arrivals(Inbox([(WORKER, PUSH), (WORKER, PULL), (OTHER, PULL), (OTHER, PUSH)]).receive)
    assert arrivals.next(0.1) == [(OTHER, PULL), (WORKER, PUSH), (WORKER, PULL), (OTHER, PUSH)]


def test_an_acknowledgement_travels_with_the_next_difference_to_its_member() -> None:
    held = Held().back
    assert list(held.passed([Send(HOST, Absorbed(1)), Send(HOST, Absorbed(2)), Send(MEMBER, Absorbed(7))])) == []
    sends = [Send(HOST, difference(5)), Send(HOST, difference(6))]
    assert list(held.passed(sends)) == [Send(HOST, difference(5, absorbed=2)), Send(HOST, difference(6))]


def test_nothing_overtakes_an_acknowledgement_on_its_stream() -> None:
    held = Held().back
    agreed = Agreed(0, 1)
    sends = [Send(HOST, Absorbed(3)), Send(MEMBER, agreed), Send(HOST, agreed)]
    assert list(held.passed(sends)) == [Send(MEMBER, agreed), Send(HOST, Absorbed(3)), Send(HOST, agreed)]
    assert held.due() == []


def test_what_no_difference_takes_along_is_acknowledged_after_a_while() -> None:
    clock = Held()
    held = clock.back
    list(held.passed([Send(HOST, Absorbed(1))]))
    assert held.due() == []
    patience_s = held.patience_s(1.0)
    assert 0 < patience_s < 0.1
    clock.now_s += patience_s
    assert held.due() == [Send(HOST, Absorbed(1))]
    assert held.patience_s(1.0) == 1.0


def test_where_a_step_waits_for_it_an_acknowledgement_is_due_at_once() -> None:
    held = Held(is_waited_for=True).back
    list(held.passed([Send(HOST, Absorbed(1))]))
    assert held.patience_s(1.0) == 0.0
    assert held.due() == [Send(HOST, Absorbed(1))]
