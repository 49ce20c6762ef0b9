"""Servers with parity, their controller and a worker, without chance: what is sent arrives in the order of sending."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Hello, Message, Send
from holdfast.cluster.core.outputs import Output
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_host import ParityHost
from holdfast.cluster.core.possession import Possession
from holdfast.cluster.core.progress import BEGINNING
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stripes import Protection
from tests.cluster.core.model import Part, SavedRow, Storage
from tests.cluster.core.striped import Ledger, Rotation, StripedShard, Striping
from tests.cluster.core.world import Cores

MOST_BLOCKS = 5_000  # asked for in a scene, by far


class Ring:
    """A job that has begun, and whose rows are all protected.

    Args:
        servers: How many.
        data: How many rows share a parity.
        rows: On each server.
        parity: Hosts of a stripe.
        cores: The state machines.
    """

    def __init__(self, servers: int, *, data: int, rows: int, parity: int = 2, cores: Cores = Cores()) -> None:  # noqa: B008 - frozen
        self.layout = Rotation((rows,) * servers, data=data, parity=parity)
        self._striping = Striping(self.layout, Ledger(), seed=0)
        self._storages = [Storage(self._first(index)) for index in range(servers)]
        view = View.first(servers=servers, workers=1)
        modes = {"recovery": Recovery.PARTIAL, "parity": True}
        self.controller: ControllerCore = cores.controller(view, **modes)
        self._make = cores.server
        self.cores: dict[Member, ServerCore] = {}  # of those who live
        self._frames: deque[tuple[Member, Send]] = deque()
        self.is_lost: Callable[[Member, Send], bool] = lambda sender, send: False
        self.arrived: Callable[[Member, Member, Message], None] = lambda sender, receiver, message: None
        self.told: list[Output] = []  # what the controller wanted done, other than messages
        self._start(*range(servers))
        self.advance_all()

    def _first(self, server: int) -> Part:
        rows = self.layout.rows[server]
        return Part({row: SavedRow(record=self._striping.ledger.first(server, row)) for row in rows})

    # ---- who is there ----------------------------------------------------------------------------------------------

    def member(self, index: int) -> Member:
        """The server in a place."""
        return self.controller.view.member(Role.SERVER, index)

    def parity(self, index: int) -> Parity:
        """What it does beside its pace."""
        protected = self.cores[self.member(index)]._protected
        assert protected is not None
        return protected[0]

    def rows(self, index: int) -> Possession:
        """Which rows it has."""
        return self.parity(index)._rows

    def host(self, index: int) -> ParityHost:
        """Its parities."""
        return self.parity(index)._host

    def shard(self, index: int) -> StripedShard:
        """Its records."""
        shard = self.cores[self.member(index)]._shard
        assert isinstance(shard, StripedShard)
        return shard

    def kill(self, *indices: int) -> None:
        """They die together; then others are in their places, which have nothing."""
        for dead in [self.member(index) for index in indices]:
            del self.cores[dead]
            self.lead(self.controller.died(dead))
        self._start(*indices)

    def _start(self, *indices: int) -> None:
        members = [self.member(index) for index in indices]
        for each in members:
            shard = StripedShard(each.index, self._striping, self._storages[each.index], set(), None)
            self.cores[each] = self._make(each, shard, protection=Protection(self.layout, shard))
            self.lead(self.controller.up(each))
        self.deliver()
        for each in members:
            self.send(each, self.cores[each].handle(Member(Role.WORKER, 0, 1), Hello(BEGINNING, BEGINNING)))

    # ---- what they say ---------------------------------------------------------------------------------------------

    def send(self, sender: Member, sends: list[Send]) -> None:
        """They arrive, and what is sent because of them."""
        self._frames.extend((sender, each) for each in sends)
        self.deliver()

    def lead(self, outputs: list[Output]) -> None:
        """What the controller wants done; messages wait until they are delivered."""
        for each in outputs:
            if isinstance(each, Send):
                self._frames.append((CONTROLLER, each))
            else:
                self.told.append(each)

    def deliver(self) -> None:
        """Until nothing is on its way. What the dead said is lost."""
        while self._frames:
            sender, each = self._frames.popleft()
            if (sender != CONTROLLER and sender not in self.cores) or self.is_lost(sender, each):
                continue
            self.arrived(sender, each.to, each.message)
            if each.to == CONTROLLER:
                self.lead(self.controller.handle(sender, each.message))
            elif each.to in self.cores:
                self._frames.extend((each.to, send) for send in self.cores[each.to].handle(sender, each.message))

    # ---- rebuilding ------------------------------------------------------------------------------------------------

    def advance(self, index: int, *, most: int = 4) -> bool:
        """A server asks for a block, as a gentle process does; whether it found one to ask for."""
        core = self.cores[self.member(index)]
        sends = core.advance() if core.asked < most else []
        self.send(core.member, sends)
        return bool(sends)

    def advance_all(self, *indices: int) -> None:
        """These servers, or all, ask for blocks for as long as there are any."""
        for _ in range(MOST_BLOCKS):
            asked = [self.advance(index) for index in indices or range(len(self.controller.view.servers))]
            if not any(asked):
                return
        raise AssertionError("servers ask for ever more blocks")

    def advance_rows(self, index: int) -> None:
        """A server asks for its rows, and for no parity, for as long as it finds some to ask for."""
        while sends := list(self.rows(index).advance()):
            self.send(self.member(index), sends)
