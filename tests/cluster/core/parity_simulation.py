"""A job whose rows are protected by parity, on the same network and among the same dead."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Hello, Message
from holdfast.cluster.core.outputs import Output, Protected, Saved
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stripes import Protection
from holdfast.cluster.server.rebuild_pace import RebuildPace
from tests.cluster.core.model import Applied, BrokenPromise, Part, SavedRow, Storage, gradient
from tests.cluster.core.simulation import Simulation
from tests.cluster.core.striped import Ledger, Rotation, StripedReference, StripedShard, Striping
from tests.cluster.core.world import Cores, Process


@dataclass(frozen=True)
class Code:
    """How rows are coded."""

    data: int
    parity: int
    servers: int
    rows: tuple[int, ...]

    @classmethod
    def drawn(cls, chance: random.Random, parity: int) -> Code:
        data = chance.randint(1, 3)
        servers = data + parity + chance.choice((0, 0, 1))
        rows = tuple(chance.randint(1, 2 * data + 1) for _ in range(servers))
        return cls(data, parity, servers, rows)


@dataclass
class Fallen:
    """A row from a save."""

    life: Member  # of its server, in which it fell
    lacks: dict[int, int] = field(default_factory=dict)  # by worker, the pushes that it may lack


class ParitySimulation(Simulation):
    """One schedule.

    In a patient one, workers go on until every row is protected as of the present view, and that is told. So a job in
    which that never comes does not end, whatever struck it last.
    """

    ORPHANS_PATIENCE = 400  # a push takes more messages

    def __init__(
        self,
        seed: int,
        cores: Cores = Cores(),  # noqa: B008 - frozen
        *,
        parity: int = 0,
        mercy: float | None = None,
        is_patient: bool | None = None,
        **traits: Any,
    ) -> None:
        parity = parity or (2 if seed % 3 == 0 else 1)
        self.code = Code.drawn(random.Random(seed), parity)
        layout = Rotation(self.code.rows, data=self.code.data, parity=parity)
        self.striping = Striping(layout, Ledger(), seed)
        chance = random.Random(seed + 1)
        self.eagerness = chance.choice((0.02, 0.1, 0.2, 0.3))  # to rebuild what nobody waits for
        self.together = chance.choice((1, 2, 3))
        drawn = chance.choice((0.0, 0.9, 0.99))
        self.soon = chance.choice((0, 0, 3, 1000))  # rows that nobody asks for one by one
        self.mercy = drawn if mercy is None else mercy  # the share of faults that wait until redundancy is whole
        patience = chance.random() < 0.5
        self.is_patient = patience if is_patient is None else is_patient
        self.pace = RebuildPace(is_fast=chance.random() < 0.3)
        self.protected_view = 0  # as of which redundancy was last told to be whole
        self.fallen: dict[tuple[int, int], Fallen] = {}  # by server and row
        self.greeted: set[tuple[Member, int]] = set()  # lives of servers, and the workers that they heard of
        self.hearing: Member | None = None  # whose message is handled
        super().__init__(seed, cores, **traits)

    def _servers(self) -> int:
        return self.code.servers

    def _modes(self) -> dict[str, Any]:
        return {**super()._modes(), "parity": True}

    def _storage(self, view: View) -> list[Storage]:
        return [Storage(self._first(server)) for server in range(len(view.servers))]

    def _first(self, server: int) -> Part:
        rows = self.striping.layout.rows[server]
        return Part({row: SavedRow(record=self.striping.ledger.first(server, row)) for row in rows})

    def _reference(self, view: View) -> StripedReference:
        first = [self._first(server).rows for server in range(len(view.servers))]
        records = [{row: saved.record for row, saved in rows.items()} for rows in first]
        return StripedReference(self.striping, records, len(view.workers), self.lengths)

    def _shard(self, index: int) -> StripedShard:
        shard = StripedShard(index, self.striping, self.storage[index], self.ever[index], self.reference)
        shard.fallen = self._note_fallen
        return shard

    def _server(self, member: Member, shard: Any) -> ServerCore:
        protection = Protection(self.striping.layout, shard, self.together, self.soon)
        return self.cores.server(member, shard, synchronous=self.traits.synchronous, protection=protection)

    def _note_fallen(self, server: int, row: int) -> None:
        """It may lack what workers know to be applied, and what newer saved rows hold: the rest is sent again."""
        assert self.hearing is not None
        fallen = self.fallen.setdefault((server, row), Fallen(self.hearing))
        fallen.life, lacks = self.hearing, fallen.lacks
        for saved in self.storage[server].rows.values():
            for worker, progress in saved.progress.items():
                lacks[worker] = max(lacks.get(worker, 0), progress.pushed)
        for process in self.processes.values():
            if process.member.role is Role.WORKER and process.core.view is not None:
                worker, applied = process.member.index, process.core._channels[server].applied
                lacks[worker] = max(lacks.get(worker, 0), applied.pushed)

    def _receive(self, sender: Member, receiver: Member, message: Message) -> None:
        """What a dead server said to a worker may arrive after rows have come from a save."""
        self.hearing = receiver
        if isinstance(message, Hello) and (receiver, sender.index) not in self.greeted:
            self.greeted.add((receiver, sender.index))
            for fallen in (each for each in self.fallen.values() if each.life == receiver):
                fallen.lacks[sender.index] = max(fallen.lacks.get(sender.index, 0), message.progress.pushed)
        super()._receive(sender, receiver, message)

    def _note_loss(self, member: Member) -> None:
        """Rows are noted one by one."""

    # ---- the training ----------------------------------------------------------------------------------------------

    def _happen(self) -> None:
        if self.chance.random() < self.eagerness:
            self._advance()
        else:
            super()._happen()

    def _break_something(self) -> None:
        if self.chance.random() < self.mercy and not self._is_redundant():
            self.faults += 1
        else:
            super()._break_something()

    def _is_redundant(self) -> bool:
        servers = [self.processes.get(each) for each in self.controller.view.members if each.role is Role.SERVER]
        protected = [each.core._protected for each in servers if each is not None and each.runs]
        return len(protected) == len(servers) and all(
            each is not None and each[0].is_rebuilt and each[0]._host.is_whole for each in protected
        )

    def _advance(self) -> None:
        if servers := self._running(Role.SERVER):
            process = self.chance.choice(servers)
            if self.chance.random() < 0.5:
                self.network.send(process.member, process.core.tell())
            self.pace.is_urgent = process.core.is_climbing
            if self.pace.may_ask(process.core.asked):
                self.network.send(process.member, process.core.advance(both=self.pace.is_fast))

    def _may_finish(self) -> bool:
        is_told = self.protected_view == self.controller.view.number
        return is_told or not (self.is_patient and self.is_controller_alive)

    def _pulls(self, process: Process, place: int) -> list[Any]:
        return [(index, process.member.index, place + 1) for index in range(len(self.storage))]

    def _gradients(self, process: Process, place: int) -> list[Any]:
        worker = process.member.index
        what = gradient(worker, place, process.values or ()) if self.traits.synchronous else 0
        return [(worker, place + 1, what)] * len(self.storage)

    # ---- promises --------------------------------------------------------------------------------------------------

    def _lead(self, leader: Any, outputs: list[Output]) -> None:
        for each in outputs:
            if isinstance(each, Saved):
                self._check_parities(leader.view)
                self._check_books(leader.view)
            elif isinstance(each, Protected):
                self._check_protected()
                self.protected_view = self.controller.view.number
        super()._lead(leader, outputs)

    def _check_protected(self) -> None:
        """Nobody lacks a row or a parity, of those who were not killed meanwhile."""
        servers = [self.processes[each] for each in self.controller.view.members if each.role is Role.SERVER]
        if bare := [str(each.member) for each in servers if each.alive and not (each.core.ended or each.core.is_whole)]:
            raise BrokenPromise(f"redundancy is told to be whole, and {bare} are bare")

    def _check_books(self, view: View) -> None:
        """Where every row is protected, and servers have nothing to say to each other, nobody waits for anything."""
        servers = {each for each in view.members if each.role is Role.SERVER}
        if view != self.controller.view or not self._is_redundant() or self.network.is_busy(servers):
            return
        for member in servers:
            parity, _ = self.processes[member].core._protected
            rows, host = parity._rows, parity._host
            books = (
                parity._unanswered,
                rows._wanted,
                rows._found,
                rows.doomed,
                host._asked,
                host._decodes,
                host._waiting,
            )
            if any(books):
                raise BrokenPromise(f"{member} waits for {books}, and all is whole")

    def _check_parities(self, view: View) -> None:
        """Nothing is on its way: each parity that is whole is what its members' rows make it.

        They are those who saved. The controller of an heir's servers may have called others before it died.
        """
        servers = [self.processes[each] for each in view.members if each.role is Role.SERVER]
        shards = {each.member.index: each.shard for each in servers}
        for process in servers:
            if not process.runs:
                continue
            parity, _ = process.core._protected
            for stripe in self.striping.layout.hosted(process.member.index) - parity._host.lacks:
                if process.shard.parities[stripe] != process.shard.encoded(stripe, shards):
                    raise BrokenPromise(f"{process.member} has a wrong parity of stripe {stripe}")

    def _check_model(self, save: int) -> None:
        rows = tuple(each.checkpoints[save].rows for each in self.storage)
        values = tuple({row: saved.record for row, saved in each.items()} for each in rows)
        if self.reference is not None and values != self.reference.values(self._last_step()):
            raise BrokenPromise("the model is not that of an undisturbed run")

    def _wanted(self, index: int, row: Any, everything: set[Applied]) -> set[Applied]:
        return {each for each in everything if row in self.striping.touched(index, *each)}

    def _needed(self, index: int, row: Any, wanted: set[Applied]) -> set[Applied]:
        fallen = self.fallen.get((index, row))
        lacks = {} if fallen is None else fallen.lacks
        return {(worker, number) for worker, number in wanted if number > lacks.get(worker, 0)}
