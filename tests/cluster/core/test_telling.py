"""Hosts are told of several pushes in one difference, and of each at once while a save is waited for."""

from __future__ import annotations

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Applied, CallOff, Hello, Load, Push, Send, Survey
from holdfast.cluster.core.parity_messages import Absorbed, Difference
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stripes import Protection
from tests.cluster.core.model import Part, SavedRow, Storage
from tests.cluster.core.striped import Ledger, Rotation, StripedShard, Striping

LAYOUT = Rotation((2, 2, 2), data=2, parity=1)
VIEW = View.first(servers=3, workers=2)
TOGETHER = 3


class Server:
    """Server 0, which has loaded its rows, and has heard of both workers."""

    def __init__(self, *, synchronous: bool = False) -> None:
        striping = Striping(LAYOUT, Ledger(), seed=0)
        first = {row: SavedRow(record=striping.ledger.first(0, row)) for row in LAYOUT.rows[0]}
        shard = StripedShard(0, striping, Storage(Part(first)), set(), None)
        protection = Protection(LAYOUT, shard, TOGETHER)
        self.core = ServerCore(Member(Role.SERVER, 0, 1), shard, synchronous=synchronous, protection=protection)
        self.core.handle(CONTROLLER, Load(VIEW, 0, {}))
        for worker in (0, 1):
            self.core.handle(VIEW.member(Role.WORKER, worker), Hello(BEGINNING, BEGINNING))

    def push(self, worker: int, number: int) -> list[Send]:
        message = Push(number, (worker, number, 0), b"%d" % number, Progress(0, b""))
        return self.core.handle(VIEW.member(Role.WORKER, worker), message)


def told(sends: list[Send]) -> list[dict[int, int]]:
    """The pushes that hosts hear of, each list of them once."""
    found: list[dict[int, int]] = []
    for each in sends:
        if isinstance(each.message, Difference) and dict(each.message.pushes) not in found:
            found.append(dict(each.message.pushes))
    return found


def test_hosts_hear_of_all_pushes_when_a_worker_has_pushed_so_often() -> None:
    server = Server()
    assert [told(server.push(*each)) for each in ((0, 1), (1, 1), (0, 2))] == [[], [], []]
    assert server.core.untold == 3
    assert told(server.push(0, 3)) == [{0: 3, 1: 1}]
    assert server.core.untold == 0


def test_workers_hear_that_pushes_are_applied_when_every_host_has_what_it_was_told() -> None:
    server = Server()
    sends = [send for number in (1, 2, 3) for send in server.push(0, number)]
    assert not [each for each in sends if isinstance(each.message, Applied)]
    hosts = [each.to for each in sends if isinstance(each.message, Difference)]
    answers = [server.core.handle(host, Absorbed(1)) for host in hosts]
    heard = [[each.message for each in sends if isinstance(each.message, Applied)] for sends in answers]
    assert heard == [[]] * (len(hosts) - 1) + [[Applied(3)]]


def test_hosts_hear_of_the_rest_when_the_process_says_so() -> None:
    server = Server()
    server.push(1, 1)
    assert told(server.core.tell()) == [{1: 1}]
    assert server.core.tell() == []


def test_hosts_hear_of_each_push_at_once_while_a_save_is_waited_for() -> None:
    server = Server()
    server.push(0, 1)
    assert told(server.core.handle(CONTROLLER, Survey(1, VIEW.number))) == [{0: 1}]
    assert told(server.push(0, 2)) == [{0: 2}]
    server.core.handle(CONTROLLER, CallOff(1))
    assert told(server.push(0, 3)) == []


def test_a_step_of_synchronous_training_waits_for_no_other() -> None:
    parity, _ = Server(synchronous=True).core._protected  # type: ignore[misc]
    assert parity._together == 1
