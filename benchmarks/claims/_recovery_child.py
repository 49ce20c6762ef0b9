"""The process that recovers: one per strategy, started fresh, asked for one checkpoint after the other.

Run as a module by ``_recovery_parent``: orders come by stdin and answers go to stdout, a line each.
The clock covers what stands above the baseline: reading the head and the manifests, planning, reading, verifying and
applying the rows. The table is made what the baseline says beforehand, and checked row by row afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.claims._floor import FlatFile
from benchmarks.claims._trace import TABLE, Trace
from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.read.fetcher import Fetcher, leased, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.tensors import Targets, restore_rows
from holdfast.checkpoint.training.tables import WEIGHT
from holdfast.storage import Store
from holdfast.types import Kind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Recover a checkpoint."""

    interval: int
    baseline: int | None = None  # the interval of the baseline to stand on; None: the run's own
    cold: bool = False  # with its files dropped from the page cache


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a recovery went; rows and bytes are those above the baseline."""

    interval: int
    baseline: int
    seconds: float
    rows_read: int
    bytes_read: int
    wrong_rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What was read."""

    rows: int
    size_bytes: int


class Source(Protocol):
    """Where checkpoints are recovered from."""

    def baseline(self, request: Request) -> int:
        """The interval of the baseline that the checkpoint stands on."""
        ...

    def recover(self, request: Request, table: Tensor) -> tuple[float, Amount]:
        """Bring a table that is as the baseline says to the checkpoint; the seconds of it that count."""
        ...


class RunSource:
    """Checkpoints of a run; interval ``i`` was saved at its i-th checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = hf.open_run(folder).store

    def baseline(self, request: Request) -> int:
        kinds = [entry.info.kind for entry in self._head().entries[: request.interval + 1]]
        return max(interval for interval, kind in enumerate(kinds) if kind is Kind.FULL)

    def recover(self, request: Request, table: Tensor) -> tuple[float, Amount]:
        checkpoint = self._head().entries[request.interval].info.id
        with leased(self._store, self._head, lambda head: lineage(head, checkpoint)) as head:
            if request.cold:
                drop_caches(path for path in self._folder.rglob("*") if path.is_file())
            started_s = time.perf_counter()
            self._head()  # its cost counts; the one to plan from is the one whose objects the lease keeps
            plans = recover_above(self._store, head, checkpoint, {TABLE: {WEIGHT: table}})
            return time.perf_counter() - started_s, amount_of(plans)

    def _head(self) -> Head:
        head = Chain(self._store).head()
        assert head is not None, f"{self._folder} holds no checkpoint"
        return head


def recover_above(store: Store, head: Head, checkpoint: str, tables: Mapping[str, Targets]) -> list[TablePlan]:
    """Bring tables that are as a checkpoint's baseline says to the checkpoint; what was read to do so."""
    fetcher = Fetcher(store)
    plans = plan_checkpoint(fetcher, head, checkpoint)
    above = {name: plan.without_baseline() for name, plan in plans.items()}
    restore_rows(fetcher, [(plan, tables[name]) for name, plan in above.items()])
    return list(above.values())


def amount_of(plans: Iterable[TablePlan]) -> Amount:
    """What these plans read."""
    reads = [read for plan in plans for generation in plan.generations for read in generation]
    return Amount(rows=sum(read.rows for read in reads), size_bytes=sum(read.size_bytes for read in reads))


class FloorSource:
    """A flat file per checkpoint and baseline, written when it is first asked for."""

    def __init__(self, folder: Path, trace: Trace) -> None:
        self._folder = folder
        self._trace = trace
        self._files: dict[tuple[int, int], FlatFile] = {}

    def baseline(self, request: Request) -> int:
        return request.baseline or 0

    def recover(self, request: Request, table: Tensor) -> tuple[float, Amount]:
        file = self._file(request.interval, self.baseline(request))
        if request.cold:
            drop_caches([file.path])
        started_s = time.perf_counter()
        file.restore(table)
        return time.perf_counter() - started_s, Amount(rows=file.rows, size_bytes=file.size_bytes)

    def _file(self, interval: int, baseline: int) -> FlatFile:
        key = interval, baseline
        if key not in self._files:
            ids = self._trace.wanted(interval, baseline)
            values = self._trace.values(ids, self._trace.writers(interval)[ids])
            self._folder.mkdir(exist_ok=True)
            self._files[key] = FlatFile.write(self._folder / f"{baseline}-{interval}", ids, values)
        return self._files[key]


def drop_caches(paths: Iterable[Path]) -> None:
    """Ask the system to forget what it holds of these files; they are durable, so it can."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


class Bench:
    """A table that is brought to one checkpoint after the other, in three steps, of which the second is timed."""

    def __init__(self, source: Source, trace: Trace) -> None:
        self._source = source
        self._trace = trace
        self._table = torch.empty(trace.rows, trace.dim)
        self._interval: int | None = None  # at which the table is known to be, every row of it

    def prepare(self, request: Request) -> int:
        """Make the table what the checkpoint's baseline says; that baseline's interval."""
        baseline = self._source.baseline(request)
        if self._interval is None:
            self._trace.fill(self._table, baseline)
        else:
            self._trace.move(self._table, self._interval, baseline)
        self._interval = None
        return baseline

    def recover(self, request: Request) -> tuple[float, Amount]:
        """Bring it to the checkpoint; the seconds of it that count."""
        return self._source.recover(request, self._table)

    def check(self, request: Request) -> int:
        """How many rows are wrong."""
        wrong_rows = self._trace.count_wrong(self._table, request.interval)
        self._interval = None if wrong_rows else request.interval
        return wrong_rows


def serve(bench: Bench, orders: Iterator[str], tell: Callable[[str], None]) -> None:
    """Answer requests; each step of one waits for its order, so that others can rest meanwhile."""
    tell("ready")
    for line in orders:
        request = Request(**json.loads(line))
        baseline = bench.prepare(request)
        tell("prepared")
        next(orders)
        seconds, amount = bench.recover(request)
        tell("recovered")
        next(orders)
        recovery = Recovery(
            interval=request.interval,
            baseline=baseline,
            seconds=seconds,
            rows_read=amount.rows,
            bytes_read=amount.size_bytes,
            wrong_rows=bench.check(request),
        )
        tell(json.dumps(dataclasses.asdict(recovery)))


def main(kind: str, folder: str, trace_file: str) -> None:
    """Serve the process that started this one until it closes stdin."""
    trace = Trace.load(Path(trace_file))
    source = FloorSource(Path(folder), trace) if kind == "floor" else RunSource(Path(folder))
    serve(Bench(source, trace), iter(sys.stdin), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
