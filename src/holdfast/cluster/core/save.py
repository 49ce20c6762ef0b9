"""A save under way: workers pause, servers say what there is to save, and copy it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Copied, Pause, Paused, Send, Snapshot, Survey, Surveyed
from holdfast.cluster.core.outputs import Output, Ready, Saved
from holdfast.cluster.core.progress import Progress


@dataclass(slots=True)
class Save:
    """What is known of it so far."""

    number: int
    view: View  # in which it began; it does not outlive it
    synchronous: bool
    absent: Mapping[int, Progress] = field(default_factory=dict)  # of workers that have left
    paused: dict[int, Paused] = field(default_factory=dict)  # by worker
    surveyed: dict[int, bytes] = field(default_factory=dict)  # by server
    copied: dict[int, bytes] = field(default_factory=dict)  # by server
    is_ready: bool = False

    @property
    def progress(self) -> dict[int, Progress]:
        """How far each worker came, those included that have left: whoever has their place next goes on there."""
        return {**{worker: paused.progress for worker, paused in sorted(self.paused.items())}, **self.absent}

    def begin(self) -> Iterator[Output]:
        """Servers can say what there is to save while workers drain."""
        for member in self.view.members:
            order = Pause if member.role is Role.WORKER else Survey
            yield Send(member, order(self.number, self.view.number))

    def hear(self, sender: Member, message: Paused | Surveyed) -> Iterator[Output]:
        """A member is ready."""
        if isinstance(message, Paused):
            self.paused[sender.index] = message
            yield from self._hurry()
        else:
            self.surveyed[sender.index] = message.report
        yield from self._ready()

    def snapshot(self, intent: bytes) -> Iterator[Output]:
        """Let servers copy, once."""
        if self.is_ready:
            self.is_ready = False
            for index in range(len(self.view.servers)):
                yield Send(self.view.member(Role.SERVER, index), Snapshot(self.number, self.progress, intent))

    def copy(self, server: int, copied: Copied) -> Iterator[Output]:
        """A server has copied its part."""
        self.copied[server] = copied.report
        if len(self.copied) == len(self.view.servers):
            yield Saved(save=self.number, progress=self.progress, reports=self.copied)

    def _hurry(self) -> Iterator[Output]:
        """In synchronous training no worker may pause a step behind the others: theirs would wait for it for ever."""
        if not self.synchronous or len(self.paused) < len(self.view.workers):
            return
        last = max(each.progress.pushed for each in self.paused.values())
        for worker, paused in list(self.paused.items()):
            if paused.progress.pushed < last:
                del self.paused[worker]
                yield Send(self.view.member(Role.WORKER, worker), Pause(self.number, self.view.number, last))

    def _ready(self) -> Iterator[Output]:
        if len(self.paused) == len(self.view.workers) and len(self.surveyed) == len(self.view.servers):
            self.is_ready = True
            reports = {worker: paused.report for worker, paused in self.paused.items()}
            yield Ready(save=self.number, progress=self.progress, reports=reports, surveys=self.surveyed)
