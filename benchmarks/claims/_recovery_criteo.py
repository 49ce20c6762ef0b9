"""Recovery of a model of many small tables: a DLRM with Criteo's 26 cardinalities in training, under Adagrad.

Its few large tables hold nearly all rows, its many small ones nearly all chunks. Each recovery is made in turns with
those that it is compared with, so that whatever else the machine does meets all of them alike; the least of the repeats
counts. The same stream is saved again while other processes take the processors: its baselines must be the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.claims._flat_tables import FlatTable, FlatTables
from benchmarks.claims._recovery_child import amount_of, recover_above
from benchmarks.claims._recovery_figures import Findings
from benchmarks.claims._recovery_models import Tables, copy_tables, differing, each_column, guarded, optimizers_of
from benchmarks.data.schema import KAGGLE_CARDINALITIES
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.report import Figure, Table
from benchmarks.training import train_step
from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.policy import Strategy
from holdfast.types import Kind

GRID, DIFFERENTIAL, NAIVE, FLOOR = "grid", "differential", "naive", "floor"
STRATEGIES: Mapping[str, Strategy] = {GRID: hf.Grid(), DIFFERENTIAL: hf.OneShot(), NAIVE: hf.Consecutive()}
SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoPlan:
    """How much to train and to recover."""

    rows: int = 300_000  # of all tables, about
    checkpoints: int = 69
    batch_size: int = 512
    batches: int = 8  # per interval
    every: int = 10  # of the checkpoints one in so many is recovered
    repeats: int = 8
    strategies: Sequence[str] = (GRID, DIFFERENTIAL)
    busy: Sequence[int] = ()  # the stream is saved again beside so many processes that only take time

    @property
    def recovered(self) -> list[int]:
        """The checkpoints that are recovered; number 0 is the baseline."""
        last = self.checkpoints - 1
        return sorted({*range(self.every, last + 1, self.every), last})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    seconds: float
    rows: int


def measure(plan: CriteoPlan) -> Findings:
    """Save the stream with each strategy, then recover."""
    with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as name:
        folder = Path(name)
        truth = _train(plan, {strategy: folder / strategy for strategy in plan.strategies})
        baselines = [_baselines(folder / GRID)]
        for number in plan.busy:
            with _busy_processes(number):
                _train(plan, {GRID: folder / f"busy-{number}"})
            baselines.append(_baselines(folder / f"busy-{number}"))
        recoveries = [_recover(plan, folder, interval, expected) for interval, expected in truth.items()]
    totals = {name: sum(one[name].seconds for one, _ in recoveries) for name in (*plan.strategies, FLOOR)}
    rows = {name: sum(one[name].rows for one, _ in recoveries) for name in (*plan.strategies, FLOOR)}
    wrong_rows = sum(wrong for _, wrong in recoveries)
    figures: dict[str, Figure] = {
        "criteo_grid_over_differential": totals[GRID] / totals[DIFFERENTIAL],
        "criteo_grid_over_floor": totals[GRID] / totals[FLOOR],
        "criteo_grid_rows_over_wanted_rows": rows[GRID] / rows[FLOOR],
        "criteo_baselines": baselines[0],
        "criteo_wrong_rows": wrong_rows,
        **{f"criteo_baselines_beside_{n}": found for n, found in zip(plan.busy, baselines[1:], strict=True)},
        **{f"criteo_{name}_recovery_s": seconds for name, seconds in totals.items()},
    }
    if NAIVE in totals:
        figures["criteo_naive_over_grid"] = totals[NAIVE] / totals[GRID]
    lines = [(name, 1e3 * totals[name], rows[name] / rows[FLOOR], totals[name] / totals[FLOOR]) for name in totals]
    table = Table(
        caption=f"A DLRM with Criteo's 26 tables, {plan.checkpoints} checkpoints, {baselines[0]} of them baselines",
        headers=("strategy", "recovery, ms", "rows read / wanted", "recovery / floor"),
        rows=lines,
    )
    return Findings(tables=[table], figures=figures, wrong_rows=wrong_rows)


def _train(plan: CriteoPlan, folders: Mapping[str, Path]) -> dict[int, Tables]:
    """Train and save; copies of the tables at the checkpoints that will be recovered."""
    stream = ClickStream(SEED, plan.rows / sum(KAGGLE_CARDINALITIES))
    model = DLRM(stream.cardinalities)
    optimizers = optimizers_of(model)
    truth: dict[int, Tables] = {}
    with ExitStack() as stack:
        guards = {
            name: stack.enter_context(guarded(folder, STRATEGIES[name], model, optimizers))
            for name, folder in folders.items()
        }
        for interval in range(plan.checkpoints):
            for number in range(interval * plan.batches, (interval + 1) * plan.batches):
                train_step(model, stream.batch(number, plan.batch_size), optimizers)
                for guard in guards.values():
                    guard.step()
            for guard in guards.values():
                guard.save(wait=True)
            if interval in plan.recovered:
                truth[interval] = copy_tables(model, optimizers)
        for guard in guards.values():
            guard.drain(arranged=True)
    return truth


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _baselines(folder: Path) -> int:
    return sum(info.kind is Kind.FULL for info in hf.open_run(folder).checkpoints())


def _recover(plan: CriteoPlan, folder: Path, interval: int, expected: Tables) -> tuple[dict[str, _Timed], int]:
    """One checkpoint with everybody in turns; the first turn reads what the page cache does not hold yet."""
    sources: dict[str, _RunSource | _FloorSource] = {}
    sources |= {name: _RunSource(folder / name, interval, expected) for name in plan.strategies}
    sources[FLOOR] = _FloorSource(folder / f"floor-{interval}", sources[GRID].baseline, expected)
    found: dict[str, list[_Timed]] = {name: [] for name in sources}
    wrong_rows = 0
    for turn in range(plan.repeats + 1):
        for name, source in sources.items():
            tables = each_column(source.baseline, torch.clone)
            timed = source.recover(tables)
            wrong_rows += sum(int(differing(tables[key], columns).sum()) for key, columns in expected.items())
            found[name] += [timed] if turn else []
    return {name: min(several, key=lambda one: one.seconds) for name, several in found.items()}, wrong_rows


class _RunSource:
    """A checkpoint of a run."""

    def __init__(self, folder: Path, number: int, like: Tables) -> None:
        self._store = hf.open_run(folder).store
        head = self._head()
        self._checkpoint = head.entries[number].info.id
        fetcher = Fetcher(self._store)
        plans = plan_checkpoint(fetcher, head, self._checkpoint)
        self.baseline = each_column(like, torch.zeros_like)
        first = [(p.first_generation(), self.baseline[name]) for name, p in plans.items()]
        restore_rows(fetcher, first)

    def recover(self, tables: Tables) -> _Timed:
        """Bring tables that are as the baseline says to the checkpoint: head, plan and rows count."""
        started_s = time.perf_counter()
        above = recover_above(self._store, self._head(), self._checkpoint, tables)
        return _Timed(seconds=time.perf_counter() - started_s, rows=amount_of(above).rows)

    def _head(self) -> Head:
        head = Chain(self._store).head()
        assert head is not None
        return head


class _FloorSource:
    """The rows that differ from the baseline's, in a flat file."""

    def __init__(self, path: Path, baseline: Tables, expected: Tables) -> None:
        self.baseline = baseline
        tables = {}
        for name, columns in expected.items():
            ids = differing(baseline[name], columns).nonzero().squeeze(1)
            tables[name] = FlatTable(ids.numpy(), {key: column[ids] for key, column in columns.items()})
        self._file = FlatTables.write(path, tables)

    def recover(self, tables: Tables) -> _Timed:
        """Read and apply them all."""
        started_s = time.perf_counter()
        self._file.restore(tables)
        return _Timed(seconds=time.perf_counter() - started_s, rows=self._file.rows)
