"""Puts saved rows and state back: plan, then read, verify and apply chunk by chunk, in parallel, in bounded memory.

A table's rows come as generations, oldest first: the last one that holds every row, then the deltas on top. Within a
generation each row stands once, so its chunks go in any order; between generations there is a barrier, and so the
newest row wins without anything being sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.checkpoint.read import Parts, VerifiedReader
from holdfast.errors import DamagedData
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import IDS, chunk_columns, padded
from holdfast.format.manifest import Manifest, RowsChunk, TablePart
from holdfast.format.tree import decode_tree
from holdfast.types import TableSpec

WORKERS = 4

Targets = dict[str, Tensor]  # by column name: where a table's rows go
Progress = Callable[[int], None]  # called with bytes done
RowsSeen = Callable[[str, Tensor | None], None]  # rows restored from a delta; None: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One chunk to read and apply."""

    manifest: Manifest
    part: TablePart
    chunk: RowsChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table's generations, oldest first; the first holds every row."""

    spec: TableSpec
    generations: tuple[tuple[Read, ...], ...]
    baseline: bool  # whether the first generation is the baseline's own

    @property
    def size_bytes(self) -> int:
        """Bytes that will be read."""
        return sum(read.chunk.place.length for generation in self.generations for read in generation)


def plan_tables(history: Sequence[Parts]) -> dict[str, TablePlan]:
    """What to read of each table of the last checkpoint in ``history`` (baseline first)."""
    return {part.spec.name: _plan_table(part.spec.name, history) for part in _table_parts(history[-1])}


def _table_parts(parts: Parts) -> Iterator[TablePart]:
    seen = set()
    for manifest in parts:
        for part in manifest.tables:
            if part.spec.name not in seen:
                seen.add(part.spec.name)
                yield part


def _plan_table(name: str, history: Sequence[Parts]) -> TablePlan:
    generations: list[tuple[Read, ...]] = []
    spec: TableSpec | None = None
    for age, parts in enumerate(reversed(history)):
        found = [(manifest, part) for manifest in parts for part in manifest.tables if part.spec.name == name]
        spec = spec or found[0][1].spec
        if any(part.spec != spec for _, part in found):
            raise DamagedData(parts[0].checkpoint, f"table {name} changes its shape below a delta that stands on it")
        generations.append(tuple(Read(manifest=m, part=p, chunk=chunk) for m, p in found for chunk in p.chunks))
        if found and all(part.whole for _, part in found):
            complete = tuple(reversed(generations))
            return TablePlan(spec=spec, generations=complete, baseline=age == len(history) - 1)
    raise DamagedData(history[0][0].checkpoint, f"no checkpoint below holds every row of table {name}")


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
    depth = max((len(plan.generations) for plan, _ in planned), default=0)
    with ThreadPoolExecutor(workers, thread_name_prefix="holdfast-read") as pool:
        for level in range(depth):
            _run(
                pool,
                (
                    _task(reader, plan, read, targets, seen if level or not plan.baseline else None)
                    for plan, targets in planned
                    if level < len(plan.generations)
                    for read in plan.generations[level]
                ),
                limit=2 * workers,
                progress=progress,
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


def _task(
    reader: VerifiedReader, plan: TablePlan, read: Read, targets: Targets, seen: RowsSeen | None
) -> Callable[[], int]:
    def run() -> int:
        bundle = read.manifest.bundles[read.chunk.place.bundle]
        columns = decode_chunk(plan.spec, read.chunk, reader.chunk(bundle, read.chunk.place))
        ids = columns.pop(IDS, None)
        for name, rows in columns.items():
            if name in targets:
                write_rows(targets[name], rows, read.chunk.first, ids)
        if seen is not None:
            seen(plan.spec.name, None if read.part.whole else ids)
        return read.chunk.place.length

    return run


def decode_chunk(spec: TableSpec, chunk: RowsChunk, data: memoryview) -> dict[str, Tensor]:
    """A chunk's columns by name; ``ids`` as global int64 row ids."""
    decoded = {}
    for column in chunk_columns(spec.columns, chunk.rows, chunk.ids):
        tensor = as_tensor(data[column.offset : column.offset + column.length], column.dtype, column.shape)
        if column.name == IDS and chunk.ids is not None:
            tensor = tensor.to(torch.int64) + chunk.first
        decoded[column.name] = tensor
    return decoded


def as_tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Bytes as a tensor, without a copy where the buffer can be written to."""
    kind = torch_dtype(dtype)
    if not len(data):
        return torch.empty(shape, dtype=kind)
    buffer = bytearray(data) if data.readonly else data
    return torch.frombuffer(buffer, dtype=kind).view(shape)


def write_rows(target: Tensor, rows: Tensor, first: int, ids: Tensor | None) -> None:
    """Copy rows into a table's column, by range or by id; converts type and device where they differ."""
    if ids is None:
        target[first : first + len(rows)].copy_(rows)
    else:
        target.index_copy_(0, ids.to(target.device), rows.to(device=target.device, dtype=target.dtype))


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
