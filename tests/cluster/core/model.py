"""What a simulated job trains: rows that remember every push, a store, and the model that they must come to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.progress import BEGINNING, Progress, SavedProgress

Applied = tuple[int, int]  # worker, number
Log = tuple[Applied, ...]
ROWS = ("hot", "cold")  # of each shard; priority saves hold the first


class BrokenPromise(AssertionError):
    """The protocol allowed what it must not."""


@dataclass(frozen=True)
class SavedRow:
    """A row in the store, and how far each worker had come."""

    log: Log = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)
    record: int = 0  # what is coded, where there is parity


def saved_progress(rows: Collection[SavedRow]) -> SavedProgress:
    """What the newest of these rows hold, and what all of them do."""
    workers = {worker for row in rows for worker in row.progress}
    found = {worker: [row.progress.get(worker, BEGINNING) for row in rows] for worker in workers}
    newest = {worker: max(each, key=lambda progress: progress.pushed) for worker, each in found.items()}
    return SavedProgress(
        newest, {worker: min(each, key=lambda progress: progress.pushed) for worker, each in found.items()}
    )


@dataclass(frozen=True)
class Part:
    """What one server saved for a checkpoint."""

    rows: Mapping[Any, SavedRow] = field(default_factory=lambda: {row: SavedRow() for row in ROWS})
    value: int = 0
    applied: Mapping[int, Progress] = field(default_factory=dict)  # as the server knows it


class Storage:
    """What was saved of one server's shards; it outlives the server."""

    def __init__(self, first: Part = Part()) -> None:  # noqa: B008 - frozen
        self.checkpoints = {0: first}
        self.staged: dict[int, Part] = {}
        self.rows = dict(self.checkpoints[0].rows)  # the newest of each

    def commit(self, save: int) -> None:
        """Every server has applied each worker's pushes up to where it paused, and none beyond."""
        part = self.checkpoints[save] = self.staged.pop(save)
        for row, saved in part.rows.items():
            for worker, each in saved.progress.items():
                if part.applied.get(worker, BEGINNING) != each:  # a new server may not have heard from it yet
                    raise BrokenPromise(f"worker {worker} paused at {each}, the server at {part.applied}: {save}")
                if beyond := [number for who, number in saved.log if who == worker and number > each.pushed]:
                    raise BrokenPromise(f"checkpoint {save} holds pushes {beyond} of worker {worker}, {row}")
        self.rows = dict(part.rows)


class Reference:
    """Synchronous training without a network or a death: the values of all servers after each step."""

    def __init__(self, servers: int, workers: int, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths
        self._counts = {0: workers}  # of workers, from a step on
        self._states: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((0,) * servers, (0,) * len(lengths))]

    def resize(self, step: int, workers: int) -> None:
        """From this step on there are others."""
        self._counts[step] = workers
        del self._states[step + 1 :]

    def values(self, step: int) -> tuple[int, ...]:
        """By server."""
        while len(self._states) <= step:
            self._states.append(self._next(len(self._states)))
        return self._states[step][0]

    def _next(self, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        values, places = self._states[-1]
        workers = self._counts[max(each for each in self._counts if each < step)]
        active = [worker for worker in range(workers) if places[worker] < self._lengths[worker]]
        if not active:
            raise BrokenPromise(f"step {step} is taken, and all data have ended before it")
        gradients = {
            worker: gradient(worker, places[worker], self._pulled(worker, places[worker], values)) for worker in active
        }
        return self._fold(step, gradients, places, values), tuple(
            place + (worker in active) for worker, place in enumerate(places)
        )

    def _pulled(self, worker: int, place: int, values: Any) -> Any:
        """What a worker pulls for a batch."""
        return values

    def _fold(self, step: int, gradients: Mapping[int, int], places: tuple[int, ...], values: Any) -> Any:
        """A step on all servers."""
        return tuple(fold(each, step, gradients) for each in values)


def gradient(worker: int, place: int, values: tuple[int, ...]) -> int:
    """Of a batch, from the rows that were pulled for it."""
    return hash((worker, place, values))


def fold(value: int, step: int, gradients: Mapping[int, Any]) -> int:
    """A step, whose result depends on everything before it, and on the order of workers."""
    return hash((value, step, tuple(gradients.items())))


class Shard:
    """Rows whose value is the list of pushes that were applied to them."""

    def __init__(self, index: int, storage: Storage, ever: set[Applied], reference: Reference | None) -> None:
        self.index = index
        self.rows: dict[str, Log] = dict.fromkeys(ROWS, ())
        self.value = 0
        self.progress: Callable[[], Mapping[int, Progress]] = dict  # as the server knows it
        self.is_full = lambda: False  # the store
        self.may_save: Callable[[], bool] = lambda: True  # a zombie's save is refused by the store
        self._storage = storage
        self._ever = ever  # all that any incarnation of this server applied
        self._reference = reference  # None: asynchronous
        self._is_new = False  # rows were loaded, and nothing was applied since

    def load(self, checkpoint: int | None) -> SavedProgress:
        if checkpoint is not None:
            part = self._storage.checkpoints[checkpoint]
            self._storage.rows, self.value = dict(part.rows), part.value
        self._is_new = checkpoint is None
        self.rows.update({row: saved.log for row, saved in self._storage.rows.items()})
        return saved_progress(self._storage.rows.values())

    def take_dense(self, dense: Any) -> None:
        if not self._is_new or dense != self.index:
            raise BrokenPromise(f"server {self.index} takes the dense part {dense} over what it has")
        self._is_new = False

    def read(self, rows: Any) -> Any:
        if rows != self.index:
            raise BrokenPromise(f"server {self.index} is asked for rows of server {rows}")
        return self.value

    def apply(self, step: int, gradients: Mapping[int, Any]) -> None:
        self._is_new = False
        self._ever.update((worker, step) for worker in gradients)
        for row, log in self.rows.items():
            for worker in gradients:
                last = max((number for who, number in log if who == worker), default=0)
                if step <= last:
                    raise BrokenPromise(f"push {step} of worker {worker} is applied after {last}")
            self.rows[row] = (*log, *((worker, step) for worker in gradients))
        if self._reference is None:
            if gradients != {worker: (worker, step) for worker in gradients}:
                raise BrokenPromise(f"push {step} carries {gradients}")
            return
        self.value = fold(self.value, step, gradients)
        if self.value != self._reference.values(step)[self.index]:
            raise BrokenPromise(f"server {self.index} is not what it should be after step {step}")

    def survey(self) -> bytes:
        return b"%d" % self.index

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        if self.is_full():
            return Copied(save, "the store is full")
        if intent != b"%d" % save:
            raise BrokenPromise(f"save {save} is taken with the intent {intent!r}")
        rows = {row: SavedRow(log, dict(progress)) for row, log in self.rows.items()}
        self._storage.staged[save] = Part(rows, self.value, self.progress())
        return Copied(save, report=b"%d" % self.index)

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        if self.may_save():
            self._storage.rows[ROWS[0]] = SavedRow(self.rows[ROWS[0]], dict(progress))
        return Copied(save)

    def call_off(self, save: int) -> None:
        self._storage.staged.pop(save, None)
