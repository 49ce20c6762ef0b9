"""Processes of a simulated job, what they say to each other, and what its leader wants done."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.leader import Leader, Report
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Broken, Message, Send
from holdfast.cluster.core.outputs import Ended, Fence, Join, Output, Ready, Replace, Resized, Saved, WentBack
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.streams import Incoming
from holdfast.cluster.core.worker import Credits, WorkerCore
from tests.cluster.core.model import Applied, BrokenPromise, Reference, Shard, Storage
from tests.cluster.core.network import Network, Stream

MOST_WORKERS = 4


class Ending(Enum):
    """How a job comes to its end."""

    DATA = "the data end"
    STOP = "the user stops it"
    FAILURE = "the training raises"
    ORPHANS = "the controller dies"


@dataclass(frozen=True)
class Traits:
    """What kind of job it is."""

    synchronous: bool
    recovery: Recovery
    ending: Ending
    faults: int
    saves: int
    resizes: int
    tight: bool  # the store is full now and then
    slow: Role | None  # whose messages are late: the controller's, or those of servers to each other
    hunted: Role | None = None  # whose processes are killed and stopped; None: all

    @classmethod
    def drawn(cls, chance: random.Random) -> Traits:
        return cls(
            synchronous=chance.random() < 0.5,
            recovery=chance.choice((Recovery.PARTIAL, Recovery.PARTIAL, Recovery.FULL)),
            ending=chance.choice((Ending.DATA, Ending.DATA, Ending.DATA, *Ending)),
            faults=chance.randint(0, 8),
            saves=chance.randint(0, 12),
            resizes=chance.choice((0, 0, 1, 2)),
            tight=chance.random() < 0.2,
            slow=chance.choice((None, None, None, Role.CONTROLLER)),
        )


@dataclass
class Process:
    """One life of a member."""

    member: Member
    core: Any  # ServerCore or WorkerCore
    shard: Any = None
    alive: bool = True
    stopped: bool = False
    pulls: deque[int] = field(default_factory=deque)  # of the step under way, and of those ahead of it
    values: tuple[int, ...] | None = None  # its rows, once they are there

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped and not self.core.ended


@dataclass(frozen=True)
class Cores:
    """The state machines under test; mutants take their places to show that faults are found."""

    server: Callable[..., ServerCore] = ServerCore
    worker: Callable[..., WorkerCore] = WorkerCore
    controller: Callable[..., ControllerCore] = ControllerCore
    heir: Callable[..., Leader] = Leader
    incoming: Callable[[], Incoming] = Incoming


class World:
    """All processes, the network between them, and the store."""

    CREDITS = Credits(pulls=2, pushes=3)

    def __init__(self, seed: int, cores: Cores = Cores(), **traits: Any) -> None:  # noqa: B008 - frozen
        self.chance = chance = random.Random(seed)
        self.cores = cores
        self.traits = replace(Traits.drawn(chance), **traits)
        self.lengths = tuple(chance.randint(4, 10) for _ in range(MOST_WORKERS))
        view = View.first(servers=self._servers(), workers=chance.randint(1, MOST_WORKERS - 1))
        self.controller = cores.controller(view, **self._modes())
        self.reference = self._reference(view) if self.traits.synchronous else None
        self.storage = self._storage(view)
        self.ever: list[set[Applied]] = [set() for _ in view.servers]
        self.network = Network(chance, cores.incoming, slow=self.traits.slow)
        self.processes: dict[Member, Process] = {}
        self.heirs: dict[Member, Leader] = {}
        self.starting: list[Member] = []
        self.unheard: list[Member] = []  # deaths that the launcher has not seen yet
        self.commits: list[tuple[Leader, Saved]] = []  # under way
        self.last: tuple[Leader, Saved] | None = None  # that was committed
        self.progress: dict[int, Progress] = {}  # in the last checkpoint, of every worker that there ever was
        self.lost: set[int] = set()  # servers that went back alone
        self.workers = len(view.workers)
        self.is_full = False  # the store
        self.is_controller_alive = True
        self.ended: Ended | None = None
        for member in view.members:
            self._make(member)

    def _servers(self) -> int:
        return self.chance.randint(1, 3)

    def _modes(self) -> dict[str, Any]:
        """Of the controller."""
        return {"synchronous": self.traits.synchronous, "recovery": self.traits.recovery}

    def _reference(self, view: View) -> Reference:
        return Reference(len(view.servers), len(view.workers), self.lengths)

    def _storage(self, view: View) -> list[Storage]:
        return [Storage() for _ in view.servers]

    def _shard(self, index: int) -> Any:
        return Shard(index, self.storage[index], self.ever[index], self.reference)

    def _server(self, member: Member, shard: Any) -> ServerCore:
        return self.cores.server(member, shard, synchronous=self.traits.synchronous)

    def _make(self, member: Member, shard: Any = None) -> None:
        """The process runs; the controller hears of that later."""
        synchronous = self.traits.synchronous
        if member.role is Role.SERVER:
            shard = shard or self._shard(member.index)
            core: Any = self._server(member, shard)
            shard.progress = lambda: core.progress
            shard.is_full = lambda: self.is_full
            shard.may_save = lambda: self.controller.view.holds(member)
        else:
            core = self.cores.worker(member, self.CREDITS, synchronous=synchronous, dense=lambda server: server)
        self.processes[member] = Process(member, core, shard)
        self.starting.append(member)

    def _running(self, *roles: Role) -> list[Process]:
        wanted = roles or (Role.SERVER, Role.WORKER)
        return [each for each in self.processes.values() if each.runs and each.member.role in wanted]

    def _state(self) -> str:
        view = self.controller.view
        processes = {str(each): self.processes[each].runs for each in view.members if each in self.processes}
        return f"{view}, {processes}, whole: {self.controller.is_whole}, saving: {self.controller.is_saving}"

    def _end(self, process: Process) -> None:
        """It dies; of what it sent last, some is lost."""
        process.alive = False
        if process.member not in self.unheard:
            self.unheard.append(process.member)
        self.network.lose_last_words(process.member)

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        stream = self.network.next(self._can_hear)
        if stream is None:
            return
        sender, receiver = stream.sender, stream.receiver
        accepted, is_news, message = self.network.take(stream)
        if accepted and message is not None:
            self._receive(sender, receiver, message)
        elif not accepted and is_news:
            self._report_gap(sender, receiver)

    def _can_hear(self, stream: Stream) -> bool:
        if stream.receiver.role is Role.CONTROLLER:
            return self.is_controller_alive
        process = stream.process = stream.process or self.processes.get(stream.receiver)
        if process is None or not process.runs:
            return False
        return stream.sender.role is not Role.CONTROLLER or stream.receiver not in self.heirs

    def _report_gap(self, sender: Member, receiver: Member) -> None:
        if receiver.role is Role.CONTROLLER:
            self._lead(self.controller, self.controller.died(sender))
        else:
            self._receive(receiver, receiver, Broken(sender))

    def _receive(self, sender: Member, receiver: Member, message: Message) -> None:
        if receiver.role is Role.CONTROLLER:
            self._instruct(sender, message)
            return
        if receiver in self.heirs and isinstance(message, Report):
            self._lead(self.heirs[receiver], self.heirs[receiver].handle(sender, message))
            return
        process = self.processes[receiver]
        self.network.send(receiver, process.core.handle(sender, message))
        if process.core.next_life is not None:
            self._make(process.core.next_life, process.shard)

    def _instruct(self, sender: Member, message: Message) -> None:
        """The controller hears of gaps from whoever notices one, also from a member that it has called back."""
        if isinstance(message, Broken):
            self._lead(self.controller, self.controller.died(message.to_replace(sender)))
        else:
            self._lead(self.controller, self.controller.handle(sender, message))

    # ---- leaders ---------------------------------------------------------------------------------------------------

    def _lead(self, leader: Leader, outputs: list[Output]) -> None:
        """Do what a leader wants, unless it is dead."""
        name = next((member for member, each in self.heirs.items() if each is leader), CONTROLLER)
        for each in outputs:
            match each:
                case Send():
                    self.network.send(name, [each])
                case Join(member):
                    self._make(member)
                case Replace(member):
                    self._make(member)
                    self._note_loss(member)
                case Fence(member):
                    if self.chance.random() < 0.3 and member in self.processes:
                        self.processes[member].alive = False  # the others cannot be reached, and live on for a while
                        self.network.lose_last_words(member)
                case Ready(save=save):
                    self._lead(leader, leader.snapshot(b"%d" % save))
                case Saved():
                    self.commits.append((leader, each))
                case WentBack() | Resized():
                    self._go_back()
                case Ended() if leader is self.controller:
                    self.ended = each

    def _note_loss(self, member: Member) -> None:
        """Of rows, by a server that is replaced alone."""
        if member.role is Role.SERVER and self.traits.recovery is Recovery.PARTIAL:
            self.lost.add(member.index)

    def _go_back(self) -> None:
        self.commits.clear()
        workers = len(self.controller.view.workers)
        if self.reference is not None and workers != self.workers:
            self.reference.resize(self._last_step(), workers)
        self.workers = workers

    def _last_step(self) -> int:
        """Of the last checkpoint."""
        return max((each.pushed for each in self.progress.values()), default=0)

    def _commit(self) -> None:
        """The parts of a save are written by now, or they are not."""
        leader, saved = self.commits.pop(0)
        if self.is_full:
            self._lead(leader, leader.call_off(saved.save, "the store is full"))
            return
        for storage in self.storage:
            storage.commit(saved.save)
        self.last = (leader, saved)
        if not saved.progress.keys() >= self.progress.keys():
            raise BrokenPromise(f"a checkpoint forgets who left: {saved.progress.keys()} after {self.progress.keys()}")
        self.progress = dict(saved.progress)
        if leader is not self.controller and self.is_controller_alive:
            raise BrokenPromise("an heir has saved while the controller lives")
        self._lead(leader, leader.committed(saved.save))
