"""Puts saved rows and state back: reads, verifies and applies what was planned, in parallel, in bounded memory.

Within a generation each row stands once, so its chunks go in any order. Plain increments are replayed: between their
generations there is a barrier, and so the newest row wins without anything being sorted. Of a grid no record is
written that another one replaces: its place says so, or, for records not arranged yet, the ids of the later ones do.
So its generations need no order, and no barrier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoint.plan import Read, TablePlan, prefix_bytes
from holdfast.checkpoint.read import Memory, VerifiedReader
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import ALIGNMENT, IDS, padded
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree
from holdfast.kernels.rows import scatter_rows

WORKERS = 4

Targets = dict[str, Tensor]  # by column name: where a table's rows go
Progress = Callable[[int], None]  # called with bytes done
RowsSeen = Callable[[str, Tensor | None], None]  # rows restored from a delta; None: all of them


def restore_rows(
    reader: VerifiedReader,
    plans: Iterable[tuple[TablePlan, Targets]],
    *,
    seen: RowsSeen | None = None,
    progress: Progress | None = None,
    workers: int = WORKERS,
) -> None:
    """Write every planned row into its targets."""
    planned = list(plans)
    scratch = Scratch()
    with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-read") as pool:

        def go(tasks: Iterable[Callable[[], int]]) -> None:
            _run(pool, iter(tasks), limit=2 * workers, progress=progress)

        def level(number: int, chosen: Iterable[tuple[TablePlan, Targets]]) -> Iterator[Callable[[], int]]:
            for plan, targets in chosen:
                for read in plan.generations[number] if number < len(plan.generations) else ():
                    yield partial(_apply, reader, read, targets, seen if number or not plan.baseline else None, scratch)

        go(level(0, planned))
        replayed = [(plan, targets) for plan, targets in planned if not plan.arranged]
        for number in range(1, max((len(plan.generations) for plan, _ in replayed), default=0)):
            go(level(number, replayed))
        for plan, targets in planned:
            if plan.arranged:
                winners = find_winners(pool, reader, plan)
                go(
                    partial(_apply, reader, read, targets, seen, scratch, winners=winners, number=number)
                    for number, generation in enumerate(plan.generations[1:], start=1)
                    for read in generation
                )


def _run(
    pool: ThreadPoolExecutor, tasks: Iterator[Callable[[], int]], *, limit: int, progress: Progress | None
) -> None:
    """Run the tasks with at most ``limit`` under way; the first error ends it."""
    pending: set[Future[int]] = set()
    for task in tasks:
        if len(pending) >= limit:
            pending = _settle(pending, progress)
        pending.add(pool.submit(task))
    while pending:
        pending = _settle(pending, progress)


def _settle(pending: set[Future[int]], progress: Progress | None) -> set[Future[int]]:
    done, rest = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        try:
            count = future.result()
        except BaseException:
            for other in rest:
                other.cancel()
            raise
        if progress:
            progress(count)
    return rest


class Scratch(threading.local):
    """Memory of each thread to read into: fresh memory for every read costs more than the reading, and does not scale.

    What was read before is overwritten by what is read next.
    """

    def __init__(self) -> None:
        self._free = np.empty(0, dtype=np.uint8)
        self._used = 0

    def begin(self) -> None:
        """Nobody needs what was read so far."""
        self._used = 0

    def __call__(self, length: int) -> memoryview:
        if self._used + length > len(self._free):
            self._free = np.empty(length + length // 4, dtype=np.uint8)
            self._used = 0
        start = self._used
        self._used += -(-length // ALIGNMENT) * ALIGNMENT
        return self._free[start : start + length].data


def _apply(
    reader: VerifiedReader,
    read: Read,
    targets: Targets,
    seen: RowsSeen | None,
    scratch: Scratch,
    *,
    winners: Winners | None = None,
    number: int = 0,
) -> int:
    """Read records and write those of them that no later generation replaces."""
    scratch.begin()
    known = winners.ids(read) if winners else None
    columns = read_columns(reader, read, targets.keys() | ({IDS} if known is None else set()), scratch)
    ids = columns.pop(IDS, known)
    chosen = winners.chosen(ids, number) if winners and read.contested and ids is not None else None
    for name, rows in columns.items():
        write_rows(targets[name], rows, read.chunk.first, ids, chosen)
    if seen is not None:
        seen(read.part.spec.name, None if read.part.whole else ids)
    return read.size_bytes


def read_columns(
    reader: VerifiedReader, read: Read, names: Collection[str], memory: Memory | None = None
) -> dict[str, Tensor]:
    """These of a chunk's columns as far as they are planned; ``ids`` as global int64 row ids."""
    columns = [column for column in read.columns if column.name in names]
    data = {
        (start, stop): reader.chunk(read.bundle, read.chunk.place, start, stop, memory=memory)
        for start, stop in read.ranges(columns)
    }
    decoded = {}
    for column in columns:
        length = prefix_bytes(column, read.rows)
        within = next(((low, view) for (low, high), view in data.items() if low <= column.offset < high), None)
        low, view = within if length and within else (column.offset, memoryview(b""))
        start = column.offset - low
        tensor = as_tensor(view[start : start + length], column.dtype, (read.rows, *column.shape[1:]))
        decoded[column.name] = tensor.to(torch.int64) + read.chunk.first if column.name == IDS else tensor
    return decoded


class Winners:
    """Which generation holds the newest record of each row, and the ids that were read to know it.

    One byte per row of the table (two above 255 generations) and eight per record whose place was not settled when
    it was written: without it the order of reading would have to decide.
    """

    def __init__(self, rows: int, generations: int) -> None:
        self._newest = np.zeros(rows, dtype=np.min_scalar_type(generations))
        self._ids: dict[tuple[str, int], Tensor] = {}

    def add(self, read: Read, ids: Tensor, number: int) -> None:
        """Records of a generation that is newer than all that were added before."""
        self._ids[_key(read)] = ids
        self._newest[ids.numpy()] = number

    def ids(self, read: Read) -> Tensor | None:
        """The ids of a chunk's records if they were read already."""
        return self._ids.get(_key(read))

    def chosen(self, ids: Tensor, number: int) -> Tensor | None:
        """Which of a generation's records are the newest of their rows; None for all."""
        mask = torch.from_numpy(self._newest[ids.numpy()] == number)
        return None if mask.all() else mask


def _key(read: Read) -> tuple[str, int]:
    return read.bundle.name, read.chunk.place.offset


def find_winners(pool: ThreadPoolExecutor, reader: VerifiedReader, plan: TablePlan) -> Winners | None:
    """Read the ids of every chunk that is contested or may contest one; None where nothing is."""
    numbered = [(number, read) for number, reads in enumerate(plan.generations) if number for read in reads]
    first = min((number for number, read in numbered if read.contested), default=len(plan.generations))
    contest = [(number, read) for number, read in numbered if number >= first]
    if first >= len(plan.generations) - 1:  # nothing newer than the newest
        return None
    winners = Winners(plan.spec.rows, len(plan.generations))
    found = pool.map(lambda item: _read_ids(reader, item[1]), contest)
    for (number, read), ids in zip(contest, found, strict=True):
        winners.add(read, ids, number)
    return winners


def _read_ids(reader: VerifiedReader, read: Read) -> Tensor:
    if read.chunk.ids is None:
        return torch.arange(read.chunk.first, read.chunk.first + read.rows)
    return read_columns(reader, read, {IDS})[IDS]


def as_tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Bytes as a tensor, without a copy where the buffer can be written to."""
    kind = torch_dtype(dtype)
    if not len(data):
        return torch.empty(shape, dtype=kind)
    buffer = bytearray(data) if data.readonly else data
    return torch.frombuffer(buffer, dtype=kind).view(shape)


def write_rows(target: Tensor, rows: Tensor, first: int, ids: Tensor | None, chosen: Tensor | None = None) -> None:
    """Copy rows into a table's column, by range or by id; converts type and device where they differ."""
    if ids is None:
        target[first : first + len(rows)].copy_(rows)
    else:
        scatter_rows(target, rows, ids, chosen)


def read_state(reader: VerifiedReader, manifest: Manifest) -> object:
    """The state tree that one writer saved."""
    tensors = [bytearray(tensor.length) for tensor in manifest.tensors]
    for chunk in manifest.state:
        data = reader.chunk(manifest.bundles[chunk.place.bundle], chunk.place)
        offset = 0
        for piece in chunk.pieces:
            tensors[piece.tensor][piece.start : piece.start + piece.length] = data[offset : offset + piece.length]
            offset += padded(piece.length)
    decoded = [
        as_tensor(memoryview(data), spec.dtype, spec.shape)
        for data, spec in zip(tensors[1:], manifest.tensors[1:], strict=True)
    ]
    return decode_tree(bytes(tensors[0]), decoded)
