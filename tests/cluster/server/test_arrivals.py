"""In which order a server handles what arrives."""

from __future__ import annotations

from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import CallOff, Message, Pull, Push
from holdfast.cluster.core.parity_messages import Difference
from holdfast.cluster.core.progress import BEGINNING
from holdfast.cluster.server.arrivals import Arrivals

WORKER, OTHER = Member(Role.WORKER, 0, 1), Member(Role.WORKER, 1, 1)
HOST = Member(Role.SERVER, 1, 1)
PULL, PUSH = Pull(1, (), 0), Push(1, (), None, BEGINNING)


def difference(number: int) -> Difference:
    return Difference(0, number, ())


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
