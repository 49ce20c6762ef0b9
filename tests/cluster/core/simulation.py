"""A job of state machines on a network that is slow, cut and full of the dead, all of it from a seed.

Processes are killed, stopped and woken; views arrive at different times; frames get lost, and streams are as slow as
they like. The simulation stops at the first promise that is broken, and says which.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.controller import ControllerCore, Fence, Output, Replace, Saved
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Broken, Message, Progress, Send
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.streams import Incoming, Outgoing
from holdfast.cluster.core.worker import Credits, WorkerCore

Applied = tuple[int, int]  # worker, number
Log = tuple[Applied, ...]
ROWS = ("hot", "cold")  # of each shard; priority saves hold the first


class BrokenPromise(AssertionError):
    """The protocol allowed what it must not."""


@dataclass
class SavedRow:
    """A row in the store, and how far each worker had come."""

    log: Log = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)


@dataclass(frozen=True)
class Staged:
    """A part of a checkpoint that is not committed yet."""

    rows: dict[str, SavedRow]
    applied: Mapping[int, Progress]  # as the server knows it


@dataclass
class Storage:
    """What was saved of one server's shards; it outlives the server."""

    rows: dict[str, SavedRow] = field(default_factory=lambda: {row: SavedRow() for row in ROWS})
    staged: dict[int, Staged] = field(default_factory=dict)

    def commit(self, save: int) -> None:
        """Every server has applied each worker's pushes up to where it paused, and none beyond."""
        staged = self.staged.pop(save)
        for row, saved in staged.rows.items():
            for worker, each in saved.progress.items():
                if staged.applied.get(worker) != each:
                    raise BrokenPromise(f"worker {worker} paused at {each}, the server at {staged.applied}: {save}")
                if beyond := [number for who, number in saved.log if who == worker and number > each.pushed]:
                    raise BrokenPromise(f"checkpoint {save} holds pushes {beyond} of worker {worker}, {row}")
        self.rows = staged.rows


class Shard:
    """Rows whose value is the list of pushes that were applied to them."""

    def __init__(self, storage: Storage, ever: set[Applied]) -> None:
        self.rows: dict[str, Log] = dict.fromkeys(ROWS, ())
        self._storage = storage
        self._ever = ever  # all that any incarnation of this server applied
        self.applied: Callable[[], Mapping[int, Progress]] = dict  # as the server knows it

    def load(self) -> Mapping[int, Progress]:
        held: dict[int, Progress] = {}
        for row, saved in self._storage.rows.items():
            self.rows[row] = saved.log
            for worker, progress in saved.progress.items():
                held[worker] = max(held.get(worker, progress), progress, key=lambda each: each.pushed)
        return held

    def read(self, rows: Any) -> Any:
        return rows

    def apply(self, worker: int, number: int, gradients: Any) -> None:
        if gradients != (worker, number):
            raise BrokenPromise(f"push {number} of worker {worker} carries {gradients}")
        self._ever.add((worker, number))
        for row in ROWS:
            last = max((each for who, each in self.rows[row] if who == worker), default=0)
            if number <= last:
                raise BrokenPromise(f"push {number} of worker {worker} is applied after {last}")
            self.rows[row] += ((worker, number),)

    def copy(self, save: int, progress: Mapping[int, Progress]) -> None:
        rows = {row: SavedRow(log, dict(progress)) for row, log in self.rows.items()}
        self._storage.staged[save] = Staged(rows, self.applied())

    def save_first(self, progress: Mapping[int, Progress]) -> None:
        """A priority save."""
        self._storage.rows = {**self._storage.rows, ROWS[0]: SavedRow(self.rows[ROWS[0]], dict(progress))}


@dataclass
class Process:
    """One life of a member."""

    member: Member
    core: ServerCore | WorkerCore
    shard: Shard | None = None
    alive: bool = True
    stopped: bool = False
    pull: int = 0  # the one that the step under way waits for; 0: none
    ready: bool = False  # its rows are there, so that the step can be pushed

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped and not self.core.ended


@dataclass(frozen=True)
class Cores:
    """The state machines under test; mutants take their places to show that faults are found."""

    server: Callable[..., ServerCore] = ServerCore
    worker: Callable[..., WorkerCore] = WorkerCore
    controller: Callable[[View], ControllerCore] = ControllerCore
    incoming: Callable[[], Incoming] = Incoming


class Simulation:
    """One schedule."""

    CREDITS = Credits(pulls=2, pushes=3)
    PATIENCE = 60_000  # deliveries

    def __init__(self, seed: int, cores: Cores = Cores()) -> None:  # noqa: B008 - frozen
        self.chance = random.Random(seed)
        self.cores = cores
        self.steps = self.chance.randint(4, 10)
        self.faults = self.chance.randint(0, 8)
        self.saves = self.chance.randint(0, 12)
        view = View.first(servers=self.chance.randint(1, 3), workers=self.chance.randint(1, 3))
        self.controller = cores.controller(view)
        self.storage = [Storage() for _ in view.servers]
        self.ever: list[set[Applied]] = [set() for _ in view.servers]
        self.processes: dict[Member, Process] = {}
        self.channels: dict[tuple[Member, Member], deque[tuple[int, Message | None]]] = defaultdict(deque)
        self.outgoing: dict[tuple[Member, Member], Outgoing] = defaultdict(Outgoing)
        self.incoming: dict[tuple[Member, Member], Incoming] = defaultdict(cores.incoming)
        self.speed: dict[tuple[Member, Member], float] = {}
        self.starting: list[Member] = []
        self.unheard: list[Member] = []  # deaths that the launcher has not seen yet
        for member in view.members:
            self._make(member, view)

    # ---- the world -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end of the training, or to the first broken promise."""
        for _ in range(self.PATIENCE):
            if self._is_over():
                break
            self._happen()
        else:
            raise BrokenPromise(f"nothing moves any more: {self._state()}")
        self._check_end()

    def _happen(self) -> None:
        dice = self.chance.random()
        if self.faults and dice < 0.02:
            self.faults -= 1
            self.chance.choice((self._kill, self._kill, self._stop, self._stop, self._cut))()
        elif self.saves and dice < 0.06:
            self.saves -= 1
            self._save_something()
        elif self.starting and dice < 0.10:
            self._start(self.starting.pop(self.chance.randrange(len(self.starting))))
        elif self.unheard and dice < 0.15:
            self._output(self.controller.died(self.unheard.pop(self.chance.randrange(len(self.unheard)))))
        elif dice < 0.18:
            self._wake()
        elif dice < 0.45:
            self._train()
        else:
            self._deliver()

    def _make(self, member: Member, view: View | None) -> None:
        """The process runs; the controller hears of that later."""
        if member.role is Role.SERVER:
            shard = Shard(self.storage[member.index], self.ever[member.index])
            core = self.cores.server(member, shard, view)
            shard.applied = lambda: core.progress
            self.processes[member] = Process(member, core, shard)
        else:
            self.processes[member] = Process(member, self.cores.worker(member, self.CREDITS))
        self.starting.append(member)

    def _start(self, member: Member) -> None:
        self._output(self.controller.up(member))

    def _running(self, *roles: Role) -> list[Process]:
        wanted = roles or (Role.SERVER, Role.WORKER)
        return [each for each in self.processes.values() if each.runs and each.member.role in wanted]

    def _kill(self) -> None:
        if running := self._running():
            self._end(self.chance.choice(running))

    def _end(self, process: Process) -> None:
        """It dies; of what it sent last, some is lost."""
        process.alive = False
        if process.member not in self.unheard:
            self.unheard.append(process.member)
        for (sender, _), frames in self.channels.items():
            if sender == process.member:
                for _ in range(self.chance.randint(0, len(frames))):
                    frames.pop()

    def _stop(self) -> None:
        """It is stopped, or cannot be reached, and is given up for dead."""
        if running := self._running():
            process = self.chance.choice(running)
            process.stopped = True
            self.unheard.append(process.member)

    def _wake(self) -> None:
        if stopped := [each for each in self.processes.values() if each.alive and each.stopped]:
            self.chance.choice(stopped).stopped = False

    def _cut(self) -> None:
        """Frames of a stream between the living are lost; the next heartbeat shows it."""
        if full := [key for key, frames in self.channels.items() if frames]:
            key = self.chance.choice(full)
            frames = self.channels[key]
            del frames[self.chance.randrange(len(frames))]
            frames.append((self.outgoing[key].number(), None))

    def _save_something(self) -> None:
        if self.chance.random() < 0.5:
            self._output(self.controller.save())
        elif servers := [each for each in self._running(Role.SERVER) if each.core.view is not None]:
            server = self.chance.choice(servers)
            if self.controller.view.holds(server.member):  # a zombie's save is refused by the store
                server.shard.save_first(server.core.progress)

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _send(self, sender: Member, sends: list[Send]) -> None:
        for each in sends:
            key = (sender, each.to)
            self.channels[key].append((self.outgoing[key].number(), each.message))

    def _deliver(self) -> None:
        keys = [key for key, frames in self.channels.items() if frames and self._can_hear(key[1])]
        if not keys:
            return
        weights = [self.speed.setdefault(key, self.chance.choice((1.0, 1.0, 0.1, 0.01))) for key in keys]
        sender, receiver = key = self.chance.choices(keys, weights)[0]
        number, message = self.channels[key].popleft()
        was_broken = self.incoming[key].is_broken
        if not self.incoming[key].accept(number):
            if not was_broken:
                self._report_gap(sender, receiver)
            return
        if message is not None:
            self._receive(sender, receiver, message)

    def _can_hear(self, member: Member) -> bool:
        if member.role is Role.CONTROLLER:
            return True
        process = self.processes.get(member)
        return process is not None and process.runs

    def _report_gap(self, sender: Member, receiver: Member) -> None:
        if receiver.role is Role.CONTROLLER:
            self._output(self.controller.died(sender))
        elif sender.role is Role.CONTROLLER:
            self._end(self.processes[receiver])  # it knows nothing for certain any more
        else:
            self._send(receiver, [Send(CONTROLLER, Broken(sender))])

    def _receive(self, sender: Member, receiver: Member, message: Message) -> None:
        if receiver.role is Role.CONTROLLER:
            self._output(self.controller.handle(sender, message))
            return
        process = self.processes[receiver]
        before = dict(process.shard.rows) if process.shard is not None else {}
        self._send(receiver, process.core.handle(sender, message))
        if process.shard is not None and sender.role is Role.WORKER:
            self._check_zombie(process, sender, before)

    def _output(self, outputs: list[Output]) -> None:
        for each in outputs:
            match each:
                case Send():
                    self._send(CONTROLLER, [each])
                case Replace(member):
                    self._make(member, None)
                case Fence(member):
                    if self.chance.random() < 0.3 and member in self.processes:
                        self.processes[member].alive = False  # the others cannot be reached, and live on for a while
                case Saved(save, _):
                    for storage in self.storage:
                        storage.commit(save)

    # ---- the training ----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        if not (workers := [each for each in self._running(Role.WORKER) if each.core.started]):
            return
        process = self.chance.choice(workers)
        core, member = process.core, process.member
        self._check_place(core.progress)
        if core.progress.pushed >= self.steps:
            return
        if not process.pull and core.may_pull:
            process.pull = core.pulled + 1
            self._send(member, core.pull([f"rows of {index}" for index in range(len(self.storage))]))
        elif process.pull and not process.ready:
            process.ready = core.taken(process.pull) is not None
        elif process.ready and core.may_push:
            process.pull, process.ready = 0, False
            number = core.progress.pushed + 1
            self._send(member, core.push([(member.index, number)] * len(self.storage), place=number))

    # ---- the promises ----------------------------------------------------------------------------------------------

    def _check_place(self, progress: Progress) -> None:
        if (progress.place or 0) != progress.pushed:
            raise BrokenPromise(f"a worker goes on at place {progress.place} after push {progress.pushed}")

    def _check_zombie(self, process: Process, sender: Member, before: dict[str, Log]) -> None:
        view = process.core.view
        is_dead = view is not None and sender.incarnation < view.workers[sender.index]
        if is_dead and process.shard.rows != before:
            raise BrokenPromise(f"{process.member} applied a push of {sender}, which it knows to be dead")

    def _is_over(self) -> bool:
        if self.starting or self.unheard or not self.controller.is_whole or self.controller.is_saving:
            return False
        view = self.controller.view
        servers = [self.processes[each] for each in view.members if each.role is Role.SERVER]
        if not all(self.processes[each].runs for each in view.members):
            return False
        wanted = {worker: self.steps for worker in range(len(view.workers))}
        return all({who: each.pushed for who, each in server.core.progress.items()} == wanted for server in servers)

    def _check_end(self) -> None:
        everything = {(worker, n) for worker in range(len(self.controller.view.workers)) for n in self._numbers()}
        for member in self.controller.view.members:
            if member.role is not Role.SERVER:
                continue
            ever, rows = self.ever[member.index], self.processes[member].shard.rows
            for row, log in rows.items():
                if len(set(log)) != len(log):
                    raise BrokenPromise(f"{member} applied a push twice to {row}: {log}")
                if member.incarnation == 1 and set(log) != everything:
                    raise BrokenPromise(f"{member} never died, and lacks {everything - set(log)}")
            if ever != everything:
                raise BrokenPromise(f"nobody ever applied {everything - ever} on server {member.index}")

    def _numbers(self) -> Iterator[int]:
        return iter(range(1, self.steps + 1))

    def _state(self) -> str:
        view = self.controller.view
        processes = {str(each): self.processes[each].runs for each in view.members}
        return f"{view}, {processes}, whole: {self.controller.is_whole}, saving: {self.controller.is_saving}"
