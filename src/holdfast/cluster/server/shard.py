"""What a server's state machine works on: its rows, and its part of the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.payload import Arrays, Floats, FoundRows, Gradients, Numbers, WantedRows, in_order_of_workers
from holdfast.cluster.server.average import mean
from holdfast.cluster.shard import Shard


class Saves(Protocol):
    """A server's part of the checkpoints."""

    def load(self, checkpoint: str | None, *, replaces: bool) -> SavedProgress | None:
        """Fill the rows from a checkpoint, or with the newest rows saved; None where nothing was ever saved.

        In the latter case: how far workers had come when these rows were saved. ``replaces``: another process was this
        server before, in the same job.
        """
        ...

    def load_rows(self, wanted: Sequence[Numbers], *, dense: bool) -> SavedProgress | None:
        """Fill some rows of each group with what was saved last, and the dense part where wanted; None: nothing was.

        With how far workers had come when they were saved.
        """
        ...

    def adopt(self, *, replaces: bool) -> None:
        """The rows came from elsewhere: all of them count as changed since the newest checkpoint."""
        ...

    def begin(self, *, replaces: bool) -> None:
        """The rows are as they begin."""
        ...

    def stay(self) -> None:
        """The rows are those of the last checkpoint already, in a new life of the server."""
        ...

    def mark(self, group: int, rows: Numbers) -> None:
        """These rows of a group's array have changed."""
        ...

    def mark_dense(self) -> None:
        """The dense part has changed."""
        ...

    def survey(self) -> bytes:
        """What there is to save."""
        ...

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        """Take a snapshot."""
        ...

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        """Copy the rows that a failure would set back furthest."""
        ...

    def call_off(self, save: int) -> None:
        """What was copied for a save counts as not saved."""
        ...


class LiveShard:
    """Rows that are pulled, pushed to, saved and loaded.

    Args:
        rows: The server's.
        saves: Its part of the checkpoints.
        dense: The whole dense vector, as models begin.
    """

    def __init__(self, rows: Shard, saves: Saves, dense: Floats) -> None:
        self._rows = rows
        self._saves = saves
        self._first_dense = dense
        self.names: dict[int, str] = {}  # by save: what it is called in the run; "" for what the job began with
        self.replaces = False  # another process was this server before
        self._copied: int | None = None  # the save that holds these very rows
        self.pulled_rows = 0
        self.pushed_rows = 0

    def load(self, checkpoint: int | None) -> SavedProgress:
        """Take the rows of a checkpoint, or of the newest save of each; as they begin where nothing was saved.

        Where everyone begins anew right behind a checkpoint, its rows are here, and none is read.
        """
        if checkpoint is not None and checkpoint == self._copied:
            self._saves.stay()
            return SavedProgress()
        self._copied = None
        name = None if checkpoint is None else self.names[checkpoint]
        if name == "":
            self._rows.start(self._first_dense)
            self._saves.begin(replaces=self.replaces)
            return SavedProgress()
        found = self._saves.load(name, replaces=self.replaces)
        if found is None:
            self._rows.start(self._first_dense)
            return SavedProgress()
        return found

    def take_dense(self, dense: Arrays) -> None:
        """Take a worker's copy of the dense part; its slots stay as they were loaded."""
        self._copied = None
        self._rows.dense.values[:] = dense[0]

    def read(self, rows: Arrays) -> Arrays:
        """Current values."""
        wanted = WantedRows.from_arrays(rows, len(self._rows.groups))
        self.pulled_rows += sum(map(len, wanted.rows))
        found = [group.read(each) for group, each in zip(self._rows.groups, wanted.rows, strict=True)]
        dense = self._rows.dense.values.copy() if wanted.dense else None
        return FoundRows(rows=found, dense=dense).to_arrays()

    def apply(self, step: int, gradients: Mapping[int, Arrays]) -> None:
        """One optimizer step on the mean of these pushes, taken in the order of workers."""
        groups = self._rows.groups
        push = mean(in_order_of_workers(gradients, len(groups)), len(groups))
        for number, (rows, values) in enumerate(zip(push.rows, push.values, strict=True)):
            if len(rows):
                groups[number].apply(rows, values, lr=push.lr_tables)
        self._rows.dense.apply(push.dense, lr=push.lr_dense)
        self._mark(push)

    def survey(self) -> bytes:
        """What there is to save."""
        return self._saves.survey()

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        """Take a snapshot of what changed, and keep with it how far each worker came."""
        copied = self._saves.copy(save, progress, intent)
        self._copied = None if copied.problem else save
        return copied

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        """Copy the rows that a failure would set back furthest, and keep with them what they hold."""
        return self._saves.copy_priority(save, progress)

    def call_off(self, save: int) -> None:
        """What was copied for a save counts as not saved."""
        self._saves.call_off(save)

    def _mark(self, push: Gradients) -> None:
        """What a push changed has to be saved."""
        self._copied = None
        for number, rows in enumerate(push.rows):
            if len(rows):
                self._saves.mark(number, rows)
                self.pushed_rows += len(rows)
        self._saves.mark_dense()
