"""Synchronous training on a server: one step for the pushes of all workers, once every server holds all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Applied, Held, Pull, Push, Rows, Send
from holdfast.cluster.core.pace import Heard, Shard
from holdfast.cluster.core.progress import BEGINNING, Progress


class Synchronous:
    """Steps, one at a time.

    A server that holds all of a step promises it to the others. Whoever has the promises of all applies the step. So
    when a worker dies, a step that one server has promised and another has not can have been applied by nobody, and a
    step that all have promised will be applied by all.
    """

    def __init__(self, member: Member, shard: Shard, workers: Mapping[int, Heard], view: View) -> None:
        self._member = member
        self._shard = shard
        self._workers = workers
        self._step = max((each.progress or BEGINNING).pushed for each in workers.values())  # applied
        self._pushes: dict[int, Push] = {}  # of the next step, by worker
        self._exhausted: set[int] = set()
        self._promised: dict[int, int] = {}  # by server, its last step
        self._pulls: list[tuple[Member, Pull]] = []  # of rows as they will be
        self._servers = [each for each in view.members if each.role is Role.SERVER]

    def adopt(self, view: View) -> Iterator[Send]:
        """Repeat the last promise to a server that was replaced before anyone started, even of a step applied here."""
        before, self._servers = self._servers, [each for each in view.members if each.role is Role.SERVER]
        if (promised := self._promised.get(self._member.index)) is not None:
            yield from (Send(server, Held(promised)) for server in self._servers if server not in before)

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        """It is answered at once."""
        yield Send(sender, Applied((self._workers[sender.index].progress or BEGINNING).pushed))

    def pull(self, sender: Member, pull: Pull) -> Iterator[Send]:
        """It is answered when its step is applied."""
        self._pulls.append((sender, pull))
        yield from self._answer()

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        """It is held. One that was promised already comes again from a replacement, computed from the same rows."""
        if push.number > self._step and sender.index not in self._pushes:
            assert push.number == self._step + 1, f"push {push.number} came after step {self._step}"
            self._pushes[sender.index] = push
            yield from self._promise()

    def exhausted(self, worker: int) -> Iterator[Send]:
        """Steps go on without it."""
        self._exhausted.add(worker)
        yield from self._promise()

    def held(self, server: Member, step: int) -> Iterator[Send]:
        """A promise of another server."""
        self._promised[server.index] = step
        yield from self._apply()

    def close(self, worker: int) -> Progress | None:
        """Give up what a replaced worker pushed, unless it is promised."""
        self._pulls = [(sender, pull) for sender, pull in self._pulls if sender.index != worker]
        self._exhausted.discard(worker)
        if self._is_promised:
            return self._progress(worker)
        self._pushes.pop(worker, None)
        return self._workers[worker].progress

    def has_applied(self, progress: Mapping[int, Progress]) -> bool:
        """Workers pause when the last step is pushed, not when it is applied."""
        return all(each.pushed <= self._step for each in progress.values())

    @property
    def _is_promised(self) -> bool:
        return self._promised.get(self._member.index, 0) > self._step

    def _progress(self, worker: int) -> Progress:
        """Of a worker, once the next step is applied."""
        if worker in self._pushes:
            return self._pushes[worker].progress
        return Progress(self._step + 1, (self._workers[worker].progress or BEGINNING).place)

    def _promise(self) -> Iterator[Send]:
        if self._is_promised or not self._pushes or self._workers.keys() - self._pushes.keys() - self._exhausted:
            return
        self._promised[self._member.index] = self._step + 1
        for server in self._servers:
            if server.index != self._member.index:
                yield Send(server, Held(self._step + 1))
        yield from self._apply()

    @property
    def _is_agreed(self) -> bool:
        """Whether every server holds all of the next step."""
        return all(self._promised.get(each.index, 0) > self._step for each in self._servers)

    @property
    def _gradients(self) -> dict[int, Any]:
        return {each: self._pushes[each].gradients for each in sorted(self._pushes)}

    def _apply(self) -> Iterator[Send]:
        if self._is_agreed:
            self._shard.apply(self._step + 1, self._gradients)
            self._count_step()
            yield from self._tell()
            yield from self._answer()

    def _count_step(self) -> None:
        for worker, heard in self._workers.items():
            heard.progress = self._progress(worker)
        self._step += 1
        self._pushes.clear()

    def _tell(self) -> Iterator[Send]:
        for worker, heard in self._workers.items():
            if heard.greeted:
                yield Send(Member(Role.WORKER, worker, heard.incarnation), Applied(self._step))

    def _answer(self) -> Iterator[Send]:
        waiting, self._pulls = self._pulls, []
        for sender, pull in waiting:
            assert pull.step >= self._step, f"{sender} asks for rows after {pull.step} steps, after {self._step}"
            if pull.step == self._step:
                yield Send(sender, Rows(pull.number, self._shard.read(pull.rows)))
            else:
                self._pulls.append((sender, pull))
