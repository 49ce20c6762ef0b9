"""Synchronous training with parity: a step ends when it is in every parity that it concerns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Applied, Held, Pull, Push, Rows, Send
from holdfast.cluster.core.pace import Heard
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.stripes import Records
from holdfast.cluster.core.synchronous import Synchronous
from holdfast.cluster.core.vectors import Vector

ALL = 0  # the worker whose pushes steps are, in what parities are told


class ProtectedSynchronous(Synchronous):
    """Steps, one at a time, each stable before the next one begins.

    So a worker keeps at most one push of a step that a dead server may not have finished. Whoever takes that server's
    place hears from all workers which step ended last, and goes on behind it with the pushes that they send again.
    """

    def __init__(
        self, member: Member, records: Records, workers: Mapping[int, Heard], view: View, parity: Parity
    ) -> None:
        super().__init__(member, records, workers, view)
        self._records = records
        self._parity = parity
        self._first = self._ended = self._step  # the step behind which it goes on; the last one that is stable
        self._has_begun = self._knows_where
        self._hellos: dict[int, tuple[Member, int]] = {}  # by worker, the step behind which it starts

    @property
    def applied(self) -> Vector:
        """The last step."""
        return {ALL: self._step}

    @property
    def is_settled(self) -> bool:
        """Whether a step that it began has ended."""
        return self._has_begun and self._ended > self._first

    @property
    def _knows_where(self) -> bool:
        return all(each.progress is not None for each in self._workers.values())

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        """It is answered when all that it does not compute again has ended here."""
        self._hellos[sender.index] = (sender, start.pushed)
        if not self._has_begun and self._knows_where:
            yield from self._begin()
        yield from self._answer_hellos()

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        """It is held, and its rows are fetched meanwhile."""
        yield from self._parity.fetch_for(push.gradients)
        if not self._has_begun:
            self._pushes[sender.index] = push
        elif push.number > self._step:
            yield from super().push(sender, push)
        else:
            self._skip(sender.index, push)

    def exhausted(self, worker: int) -> Iterator[Send]:
        """Steps go on without it, and were taken without it."""
        yield from super().exhausted(worker)
        self._count_without()

    def resume(self) -> Iterator[Send]:
        """Rows came, or a step became stable."""
        yield from self._apply()
        yield from self._end_step()

    def close(self, worker: int) -> Progress | None:
        """Give up what a replaced worker pushed, unless it is promised."""
        self._hellos.pop(worker, None)
        return super().close(worker)

    def has_applied(self, progress: Mapping[int, Progress]) -> bool:
        """Whether the last step has ended."""
        return self._ended == self._step and super().has_applied(progress)

    def _begin(self) -> Iterator[Send]:
        """The step that any worker knows to have ended is in all parities. Others push it again, and it is skipped."""
        self._step = max((each.progress or BEGINNING).pushed for each in self._workers.values())
        self._first = self._ended = self._step
        self._has_begun = True
        for worker, push in list(self._pushes.items()):
            if push.number <= self._step:
                self._skip(worker, push)
                del self._pushes[worker]
        self._count_without()
        yield from self._promise_again()
        yield from self._promise()
        yield from self._apply()
        yield from self._answer()  # pulls of those who knew of this server before the last one did

    def _promise_again(self) -> Iterator[Send]:
        """What a predecessor promised of the step that ended may not have reached all."""
        self._promised[self._member.index] = self._step
        others = [each for each in self._servers if each.index != self._member.index]
        yield from (Send(each, Held(self._step)) for each in others)

    def _skip(self, worker: int, push: Push) -> None:
        """A push of a step that is applied: it says where its worker goes on."""
        heard = self._workers[worker]
        heard.progress = max(heard.progress or BEGINNING, push.progress, key=lambda each: each.pushed)

    def _count_without(self) -> None:
        """Whose data have ended has taken all steps of the others, those before this server's time included."""
        for heard in (self._workers[each] for each in self._exhausted if self._has_begun):
            place = (heard.progress or BEGINNING).place
            heard.progress = Progress(self._step, place)

    def _promise(self) -> Iterator[Send]:
        if self._has_begun:
            yield from super()._promise()

    def _apply(self) -> Iterator[Send]:
        if not self._has_begun or not self._is_agreed:
            return
        gradients = self._gradients
        if self._parity.lacks_for(gradients.values()):
            for each in gradients.values():
                yield from self._parity.fetch_for(each)
            return
        yield from self._parity.apply(ALL, self._step + 1, gradients)
        self._count_step()
        yield from self._end_step()

    def _end_step(self) -> Iterator[Send]:
        if self._has_begun and self._ended < self._step <= self._parity.stable(ALL, self._step):
            self._ended = self._step
            yield from self._tell()
        yield from self._answer_hellos()
        yield from self._answer()

    def _answer_hellos(self) -> Iterator[Send]:
        if self._has_begun and self._ended == self._step:
            for worker, (sender, start) in list(self._hellos.items()):
                if start <= self._step:
                    del self._hellos[worker]
                    yield Send(sender, Applied(self._step))

    def _answer(self) -> Iterator[Send]:
        """Rows after a step are given when it has ended."""
        if not self._has_begun or self._ended < self._step:
            return
        waiting, self._pulls = self._pulls, []
        for sender, pull in waiting:
            assert pull.step >= self._step, f"{sender} asks for rows after {pull.step} steps, after {self._step}"
            if pull.step == self._step and not self._parity.lacks_pulled(pull.rows):
                yield Send(sender, Rows(pull.number, self._records.read(pull.rows)))
            else:
                self._pulls.append((sender, pull))
                yield from self._fetch(pull)

    def _fetch(self, pull: Pull) -> Iterator[Send]:
        if not self._parity.is_rebuilt:
            yield from self._parity.fetch(self._records.pulled(pull.rows))
