"""When a server applies a push, and what it answers a pull with: the one thing in which the two modes differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Applied, Copied, Pull, Push, Rows, Send
from holdfast.cluster.core.progress import BEGINNING, Progress, SavedProgress


class Shard(Protocol):
    """The rows that a server holds, and its part of the dense parameters. It outlives a going back."""

    def load(self, checkpoint: int | None) -> SavedProgress:
        """Take the rows of a checkpoint; of the newest save of each, where it is None.

        In the latter case: how far workers had come when these rows were saved.
        """
        ...

    def take_dense(self, dense: Any) -> None:
        """Take a worker's copy of the dense part; its slots stay as they were loaded."""
        ...

    def read(self, rows: Any) -> Any:
        """Current values."""
        ...

    def apply(self, step: int, gradients: Mapping[int, Any]) -> None:
        """One optimizer step on the average of these pushes, taken in the order of workers."""
        ...

    def survey(self) -> bytes:
        """What there is to save."""
        ...

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        """Take a snapshot of what changed, and keep with it how far each worker came."""
        ...

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        """Copy the rows that a failure would set back furthest, and keep with them what they hold."""
        ...

    def call_off(self, save: int) -> None:
        """What was copied for a save counts as not saved. It may be that nothing was."""
        ...


@dataclass(slots=True)
class Heard:
    """What is known of the worker in one place."""

    incarnation: int
    progress: Progress | None = None  # that is applied; None: none of its streams has begun here
    stable: Progress = BEGINNING  # that all servers have applied
    greeted: bool = False  # the stream of this incarnation has begun


class Pace(Protocol):
    """A way to apply pushes."""

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        """A worker's stream begins, behind these pushes: tell it what is applied."""
        ...

    def pull(self, sender: Member, pull: Pull) -> Iterator[Send]:
        """A worker asks for rows."""
        ...

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        """A worker has pushed."""
        ...

    def exhausted(self, worker: int) -> Iterator[Send]:
        """A worker's data have ended."""
        ...

    def held(self, server: Member, step: int) -> Iterator[Send]:
        """Another server holds all of a step."""
        ...

    def adopt(self, view: View) -> Iterator[Send]:
        """Others are there from now on."""
        ...

    def close(self, worker: int) -> Progress | None:
        """Give up what a replaced worker sent and nobody relies on; how far it came in what is left."""
        ...

    def has_applied(self, progress: Mapping[int, Progress]) -> bool:
        """Whether nothing of this is missing, which workers had pushed when they paused."""
        ...


class OwnSteps:
    """Each push is a step of its own: servers share none, and wait for no other worker."""

    def exhausted(self, worker: int) -> Iterator[Send]:
        """Nobody waits for it."""
        return iter(())

    def held(self, server: Member, step: int) -> Iterator[Send]:
        """Steps are not shared."""
        return iter(())

    def adopt(self, view: View) -> Iterator[Send]:
        """Nothing is asked of servers."""
        return iter(())

    def has_applied(self, progress: Mapping[int, Progress]) -> bool:
        """A worker pauses when everything is applied."""
        return True


class Asynchronous(OwnSteps):
    """Pushes are applied as they come."""

    def __init__(self, shard: Shard, workers: Mapping[int, Heard]) -> None:
        self._shard = shard
        self._workers = workers

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        """It is answered at once."""
        yield Send(sender, Applied((self._workers[sender.index].progress or BEGINNING).pushed))

    def pull(self, sender: Member, pull: Pull) -> Iterator[Send]:
        """It is answered at once."""
        yield Send(sender, Rows(pull.number, self._shard.read(pull.rows)))

    def push(self, sender: Member, push: Push) -> Iterator[Send]:
        """It is applied unless it was before."""
        heard = self._workers[sender.index]
        assert heard.progress is not None, "a push came before the hello of its stream"
        if push.number > heard.progress.pushed:
            assert push.number == heard.progress.pushed + 1, f"push {push.number} came after {heard.progress.pushed}"
            self._shard.apply(push.number, {sender.index: push.gradients})
            heard.progress, heard.stable = push.progress, push.stable
        yield Send(sender, Applied(heard.progress.pushed))

    def close(self, worker: int) -> Progress | None:
        """What came is applied."""
        return self._workers[worker].progress
