"""Servers without one of the rules of the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Applied, Hello, Message, Pull, Push, Rows, SavePriority, Send
from holdfast.cluster.core.pace import Asynchronous, Heard, Pace, Shard
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.synchronous import Synchronous
from tests.cluster.core.world import Cores


def paced(pace: type) -> Cores:
    """Servers with another pace."""

    class Server(ServerCore):
        def _make_pace(self, view: View) -> Pace:
            if self._is_synchronous:
                return pace(self.member, self._shard, self._workers, view)
            return pace(self._shard, self._workers)

    return Cores(server=Server)


class AppliesAgain(Asynchronous):
    """Applies whatever comes."""

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        self._shard.apply(push.number, {sender.index: push.gradients})
        self._workers[sender.index].progress = push.progress
        yield Send(sender, Applied(push.number))


class HearsTheDead(ServerCore):
    """Takes messages of older incarnations."""

    def is_replaced(self, member: Member) -> bool:
        return False


class ForgetsWhatRowsHold(ServerCore):
    """A new server believes that the rows it loaded hold nothing of what comes."""

    def _greet(self, sender: Member, hello: Hello) -> Iterator[Send]:
        self._loaded = {}
        return super()._greet(sender, hello)


class AnswersBeforeItsRows(ServerCore):
    """A new server takes what comes while its rows are still being loaded."""

    def __init__(self, member: Member, shard: Shard, *, synchronous: bool = False) -> None:
        super().__init__(member, shard, synchronous=synchronous)
        if member.incarnation > 1:
            self._view = View.first(servers=3, workers=3)
            self._workers.update({index: Heard(1) for index in range(3)})


class TakesEveryCopy(ServerCore):
    """Takes a worker's copy of the dense part whenever it gets one."""

    def _greet(self, sender: Member, hello: Hello) -> Iterator[Send]:
        self._wants_dense = True
        return super()._greet(sender, hello)


class SavesWithoutProgress(ServerCore):
    """Does not say what the rows of a priority save hold."""

    @property
    def progress(self) -> dict[int, Progress]:
        return {} if self._is_saving_priority else super().progress

    def handle(self, sender: Member, message: Message) -> list[Send]:
        self._is_saving_priority = isinstance(message, SavePriority)
        sends = super().handle(sender, message)
        self._is_saving_priority = False
        return sends

    _is_saving_priority = False


class AppliesOnItsOwn(Synchronous):
    """Applies a step that other servers may not hold."""

    def _promise(self) -> Iterator[Send]:
        sends = list(super()._promise())
        if self._is_promised:
            self._promised = {each.index: self._step + 1 for each in self._servers}
            sends.extend(self._apply())
        yield from sends


class KeepsWhatIsNotPromised(Synchronous):
    """Keeps what a dead worker pushed, though it says that it has not."""

    def close(self, worker: int) -> Progress | None:
        pushes = dict(self._pushes)
        progress = super().close(worker)
        self._pushes.update(pushes)
        return progress


class BreaksItsPromise(Synchronous):
    """Gives up a dead worker's push of a step that others may have applied."""

    def close(self, worker: int) -> Progress | None:
        super().close(worker)
        self._pushes.pop(worker, None)
        return self._workers[worker].progress


class AnswersAtOnce(Synchronous):
    """Gives rows as they are, not as they are to be."""

    def pull(self, sender: Member, pull: Pull) -> Iterator[Send]:
        yield Send(sender, Rows(pull.number, self._shard.read(pull.rows)))


class AppliesAsItComes(Synchronous):
    """Averages in the order of arrival."""

    def _apply(self) -> Iterator[Send]:
        shard, order = self._shard, list(self._pushes)

        class Unsorted:
            def apply(self, step: int, gradients: Mapping[int, Any]) -> None:
                shard.apply(step, {each: gradients[each] for each in order})

            def read(self, rows: Any) -> Any:
                return shard.read(rows)

        self._shard = Unsorted()  # type: ignore[assignment]
        yield from super()._apply()
        self._shard = shard


class CopiesTooEarly(Synchronous):
    """Copies before the last step is applied."""

    def has_applied(self, progress: Mapping[int, Progress]) -> bool:
        return True


class PromisesOnce(Synchronous):
    """A server that was replaced does not get the promises that its predecessor got."""

    def adopt(self, view: View) -> Iterator[Send]:
        list(super().adopt(view))
        return iter(())
