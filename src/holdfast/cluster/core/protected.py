"""Asynchronous training with parity: rows are fetched before they are used, and a push counts when it is stable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Applied, Pull, Push, Rows, Send
from holdfast.cluster.core.pace import Heard, OwnSteps, Pace
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.core.stripes import Records, StripeSet
from holdfast.cluster.core.vectors import Vector


@dataclass(slots=True)
class _Waiting:
    """A worker's message whose rows are not there."""

    sender: Member
    message: Pull | Push
    stripes: StripeSet  # of those, which were not there when it was last looked
    looked: int = -1  # how often rows had come by then
    fetched: int = -1  # the renewals of its rows when they were asked for


class ProtectedPace(Pace, Protocol):
    """A way to apply pushes where rows are protected by parity."""

    @property
    def applied(self) -> Vector:
        """By worker, its last push; in synchronous training, of worker 0, the last step."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether nothing that a predecessor had not finished is needed from anybody."""
        ...

    def resume(self) -> Iterator[Send]:
        """Rows came, or pushes became stable."""
        ...


class ProtectedAsynchronous(OwnSteps):
    """Pushes are applied as they come: whole, and behind all that their worker sent before."""

    def __init__(self, records: Records, workers: Mapping[int, Heard], parity: Parity) -> None:
        self._records = records
        self._workers = workers
        self._parity = parity
        self._queues: dict[int, deque[_Waiting]] = {}
        self._opens: dict[int, int] = {}  # by worker, the push that must be stable before its hello is answered
        self._places: dict[int, deque[Progress]] = {}  # by worker, from its last push that is stable on
        self._told: dict[int, int] = {}  # by worker, the push up to which it was told that all are applied
        self._effects = parity.effects  # when all workers were last told

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        """It is answered when all that is applied is stable: the answer tells what the worker must not send again."""
        worker = sender.index
        self._opens[worker] = self._pushed(worker)
        self._told.pop(worker, None)
        yield from self._parity.tell()
        yield from self._tell_all()

    def pull(self, sender: Member, pull: Pull) -> Iterator[Send]:
        """It is answered as soon as its rows are there."""
        if self._parity.is_rebuilt:
            yield Send(sender, Rows(pull.number, self._records.read(pull.rows)))
        else:
            yield from self._queue(_Waiting(sender, pull, self._records.pulled(pull.rows)))

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        """It is applied as soon as its rows are there."""
        if self._parity.is_rebuilt:
            yield from self._apply(sender, push)
        else:
            yield from self._queue(_Waiting(sender, push, self._records.touched(push.gradients)))

    def close(self, worker: int) -> Progress | None:
        """What waits for rows is given up. What is not stable may be lost yet, and has to be sent again."""
        self._queues.pop(worker, None)
        places = self._places.get(worker)
        return places[0] if places else self._workers[worker].progress

    def resume(self) -> Iterator[Send]:
        """Rows came, or pushes became stable."""
        for queue in list(self._queues.values()):
            yield from self._work_off(queue)
        yield from self._tell_all()

    @property
    def is_settled(self) -> bool:
        """Any worker can die."""
        return True

    @property
    def applied(self) -> Vector:
        """By worker, its last push."""
        return {worker: self._pushed(worker) for worker in self._workers}

    def _pushed(self, worker: int) -> int:
        progress = self._workers[worker].progress
        return 0 if progress is None else progress.pushed

    def _queue(self, waiting: _Waiting) -> Iterator[Send]:
        queue = self._queues.setdefault(waiting.sender.index, deque())
        queue.append(waiting)
        yield from self._work_off(queue)

    def _work_off(self, queue: deque[_Waiting]) -> Iterator[Send]:
        while queue and not self._lacks(queue[0]):
            waiting = queue.popleft()
            match waiting.message:
                case Pull(number, rows):
                    yield Send(waiting.sender, Rows(number, self._records.read(rows)))
                case Push() as push:
                    yield from self._apply(waiting.sender, push)
        for waiting in queue:
            if waiting.fetched != self._parity.renewals:
                waiting.fetched = self._parity.renewals
                yield from self._parity.fetch(waiting.stripes)

    def _lacks(self, waiting: _Waiting) -> bool:
        """Rows that came stay: only those are looked for that were not there before, when others have come."""
        if waiting.looked != self._parity.arrivals:
            waiting.looked = self._parity.arrivals
            waiting.stripes = self._parity.missing_of(waiting.stripes)
        return bool(waiting.stripes)

    def _apply(self, sender: Member, push: Push) -> Iterator[Send]:
        worker = sender.index
        heard = self._workers[worker]
        assert heard.progress is not None, "a push came before the hello of its stream"
        if push.number > heard.progress.pushed:
            assert push.number == heard.progress.pushed + 1, f"push {push.number} came after {heard.progress.pushed}"
            yield from self._parity.apply(worker, push.number, {worker: push.gradients})
            self._places.setdefault(worker, deque([heard.progress])).append(push.progress)
            heard.progress, heard.stable = push.progress, push.stable
            if self._effects != self._parity.effects:
                yield from self._tell_all()
        else:
            self._told.pop(worker, None)  # a new worker pushes what its predecessor pushed, and waits for an answer
        yield from self._tell(worker)

    def _tell_all(self) -> Iterator[Send]:
        self._effects = self._parity.effects
        for worker in self._opens:
            yield from self._tell(worker)

    def _tell(self, worker: int) -> Iterator[Send]:
        """Say what is stable, if it is news."""
        heard = self._workers[worker]
        stable = self._parity.stable(worker, self._pushed(worker))
        places = self._places.get(worker, deque())
        while len(places) > 1 and places[1].pushed <= stable:
            places.popleft()
        if heard.greeted and stable >= self._opens[worker] and stable != self._told.get(worker):
            self._told[worker] = stable
            yield Send(Member(Role.WORKER, worker, heard.incarnation), Applied(stable))
