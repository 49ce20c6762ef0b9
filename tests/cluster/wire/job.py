"""A job whose members are the state machines of the core, each with an endpoint of its own, in one thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.cluster.core.controller import ControllerCore
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Broken, Copied, Load, Message, NewView, Send, Start
from holdfast.cluster.core.outputs import Output, Replace
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.worker import WorkerCore
from holdfast.cluster.wire.endpoint import Endpoint
from tests.cluster.wire.meeting import Meeting

ROWS = 50_000  # of a pull or push: enough for frames of their own


class Shard:
    """Remembers what was applied, and that it arrived whole; this job does not save."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int]] = []

    def load(self, checkpoint: int | None) -> SavedProgress:
        return SavedProgress()

    def read(self, rows: Any) -> Any:
        return (rows[0].astype(np.float32),)

    def apply(self, step: int, gradients: Mapping[int, Any]) -> None:
        for worker, (each,) in gradients.items():
            assert (each == 1000 * worker + step).all() and each.size == ROWS
            self.applied.append((worker, step))

    def take_dense(self, dense: Any) -> None:
        raise NotImplementedError

    def survey(self) -> bytes:
        raise NotImplementedError

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        raise NotImplementedError

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        raise NotImplementedError

    def call_off(self, save: int) -> None:
        raise NotImplementedError


class Node:
    """A server or worker as a process would run it."""

    def __init__(self, member: Member, meeting: Meeting, job: Job) -> None:
        self.member, self.steps = member, job.steps
        self.endpoint = meeting.endpoint(member)
        self.endpoint.connect(CONTROLLER, job.endpoint.address)
        self.shard = Shard()
        is_server = member.role is Role.SERVER
        self.core: Any = ServerCore(member, self.shard) if is_server else WorkerCore(member)
        self.pull = 0

    def turn(self) -> None:
        for sender, message in self.endpoint.receive(0.001):
            self._take(sender, message)
        if self.member.role is Role.WORKER and self.core.view is not None:
            self._train()

    def _take(self, sender: Member, message: Message) -> None:
        if sender == self.member:
            self.endpoint.send(CONTROLLER, message)  # its own report: a stream is broken
            return
        self._send(self.core.handle(sender, message))
        if isinstance(message, NewView | Load | Start):
            self.endpoint.disconnect_replaced(message.view)

    def _train(self) -> None:
        core = self.core
        number = core.progress.pushed + 1
        if number > self.steps:
            return
        if not self.pull and core.may_pull:
            self.pull = core.pulled + 1
            self._send(core.pull([(np.arange(ROWS),)] * 2))
        elif self.pull and core.may_push and (rows := core.taken(self.pull)) is not None:
            assert all((each[0] == np.arange(ROWS)).all() for each in rows.values())
            self.pull = 0
            gradients = [(np.full(ROWS, 1000 * self.member.index + number, np.float32),) for _ in range(2)]
            self._send(core.push(gradients, place=b"%d" % number))

    def _send(self, sends: list[Send]) -> None:
        for each in sends:
            self.endpoint.send(each.to, each.message)


class Job:
    """Two servers and two workers."""

    def __init__(self, meeting: Meeting, *, steps: int) -> None:
        self.steps = steps
        self.endpoint: Endpoint = meeting.endpoint(CONTROLLER)
        view = View.first(servers=2, workers=2)
        self.core = ControllerCore(view)
        self._meeting = meeting
        self._known: set[Member] = set()
        self.nodes = {member: Node(member, meeting, self) for member in view.members}

    def kill(self, member: Member) -> None:
        self.nodes.pop(member).endpoint.close(linger_s=0)
        self._output(self.core.died(member))
        self.endpoint.disconnect(member)

    def turn(self) -> None:
        for node in list(self.nodes.values()):
            node.turn()
        for sender, message in self.endpoint.receive():
            self._output(self.core.handle(sender, message))
            if isinstance(message, Broken):
                self.kill(message.member)
        for member in [each for each in self.endpoint.addresses if each not in self._known]:
            self._known.add(member)
            self._introduce(member)
            self._output(self.core.up(member))

    @property
    def is_done(self) -> bool:
        workers = [node.core for node in self.nodes.values() if node.member.role is Role.WORKER]
        return all(each.progress.pushed == self.steps and not any(c.pushes for c in each._channels) for each in workers)

    def _introduce(self, member: Member) -> None:
        others = [each for each in self.endpoint.addresses if each != member]
        self.endpoint.introduce(member, others)
        for each in others:
            self.endpoint.introduce(each, [member])

    def _output(self, outputs: list[Output]) -> None:
        for each in outputs:
            match each:
                case Send(to, message):
                    self.endpoint.send(to, message)
                case Replace(member):
                    self.nodes[member] = Node(member, self._meeting, self)
