"""Small runs of every kind, as files, and what each of their checkpoints holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import take_over
from holdfast.format.catalog import Intent, checkpoint_id
from holdfast.format.state import JobState, RankState
from holdfast.policy import Precision, Retention, Strategy
from holdfast.run import Run
from holdfast.runtime import Runtime
from holdfast.storage import LocalStore, MemoryStore, Store
from holdfast.testing.runtime import with_runtime
from holdfast.types import Kind
from tests.independent.writing import save

ROWS = {"item": 120, "user": 30}
DIMS = {"item": 16, "user": 6}
SETTINGS = hf.Settings(
    buffer_bytes=2 * 65536, frame_bytes=65536, grace_s=1e6, uploads=1, retry_s=0.0, handle_sigterm=False
)
AT_ONCE = Runtime(sleep=lambda _: None, wall_s=lambda: 1e9)  # nobody waits for a second look
Rows = dict[str, dict[str, Tensor]]  # by table and column


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRun:
    """A run in files, and the truth of it."""

    name: str
    store: LocalStore
    rows: dict[str, Rows]  # by checkpoint
    states: dict[str, Any]
    newest: dict[str, list[Tensor]] = field(
        default_factory=dict
    )  # by table: weights that rows may have in the newest view


def sample_run(name: str, folder: Path) -> SampleRun:
    """The one of that name."""
    store = MemoryStore()
    _KINDS[name](store)
    return _sample(name, store, folder / name)


def _sample(name: str, made: Store, folder: Path) -> SampleRun:
    catalogs = sorted(info.name for info in made.list("catalog/"))
    made.delete(catalogs[:-2])  # one to fall back on; a reader needs no more
    for info in made.list():
        path = folder / info.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.get(info.name))
    run = with_runtime(Run, AT_ONCE)(LocalStore(folder))
    infos = run.checkpoints()
    rows = {info.id: _rows(run, info.id) for info in infos}
    states = {info.id: run.state(info.id) for info in infos}
    newest = {}
    if run.priority_saves():
        last = [rows[infos[-1].id][table]["weight"] for table in ROWS]
        saved = [run.read_newest_rows(table, range(ROWS[table]))["weight"] for table in ROWS]
        newest = {table: [last[at], saved[at]] for at, table in enumerate(ROWS)}
    return SampleRun(name=name, store=LocalStore(folder), rows=rows, states=states, newest=newest)


def _rows(run: Run, checkpoint: str) -> Rows:
    return {spec.name: run.read_rows(spec.name, range(spec.rows), step=checkpoint) for spec in run.tables(checkpoint)}


class _Model:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = nn.ModuleDict({name: nn.Embedding(ROWS[name], DIMS[name], sparse=True) for name in ROWS})
        self.module["top"] = nn.Linear(3, 2)
        self.optimizer = Adagrad([self.module[name].weight for name in ROWS], lr=0.1)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        for name in ROWS:
            ids = torch.randint(0, ROWS[name], (12,), generator=generator).unique()
            (self.module[name](ids) - number).square().sum().backward()
        self.optimizer.step()


def _trained(
    strategy: Strategy,
    precision: Precision = hf.Exact(),  # noqa: B008 - frozen
    *,
    saves: int = 4,
    odd: bool = False,
    retention: Retention = hf.KeepAll(),  # noqa: B008 - frozen
) -> Callable[[Store], None]:
    def make(store: Store) -> None:
        model = _Model()
        with hf.Checkpointer(
            store,
            model=model.module,
            optimizer=model.optimizer,
            save=hf.Never(),
            strategy=strategy,
            precision=precision,
            retention=retention,
            settings=SETTINGS,
        ) as guard:
            for number in range(1, saves + 1):
                model.step(number)
                if odd:  # rows that no record can hold
                    rows = torch.tensor([number, 7 * number])
                    model.module["item"].weight.data[rows, number] = float("nan")
                    guard.mark("item", rows)
                guard.step()
                guard.save(wait=True)
                guard.annotate(auc=0.5 + number / 100)
                guard.drain(arranged=True)

    return make


def _priority(store: Store) -> None:
    """A checkpoint, a delta on it, and rows saved after that."""
    model = _Model()
    with hf.Checkpointer(
        store,
        model=model.module,
        optimizer=model.optimizer,
        save=hf.EverySteps(8),
        strategy=hf.Partial(priority=hf.SCAR(r=0.25), consistent=hf.Consecutive()),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
        settings=SETTINGS,
    ) as guard:
        for number in range(1, 23):
            model.step(number)
            guard.step()
            guard.drain()


def _two_ranks(store: Store) -> None:
    """By the code that ranks and their agents run, without processes of their own."""
    chain = Chain(store, writer="ranks")
    chain.commit(take_over())
    numbers = count(1)
    base: str | None = None
    generator = torch.Generator().manual_seed(0)
    tables = {
        n: {"weight": torch.rand((ROWS[n], DIMS[n]), generator=generator), "sum": torch.rand(ROWS[n])} for n in ROWS
    }
    for step in (1, 2, 3):
        intent = Intent(
            checkpoint=checkpoint_id(step, 1, f"{next(numbers):08x}"),
            step=step,
            term=1,
            kind=Kind.INCREMENTAL if base else Kind.FULL,
            parent=base,
            base=base,
            world=2,
            created_s=1.0,
            overlap="wait",
        )
        touched = {n: torch.randperm(ROWS[n], generator=generator)[: ROWS[n] // 3].sort().values for n in ROWS}
        for name, ids in touched.items():
            tables[name]["weight"][ids] += step
        states = [_state(step, rank) for rank in range(2)]
        save(store, chain, intent, tables, states=states, touched=touched if base else None)
        base = intent.checkpoint


def _state(step: int, rank: int) -> Any:
    own = RankState(step=step).to_tree()
    model = {"top.weight": torch.arange(6.0) + step, "top.bias": torch.arange(6.0) - step}
    training = {"model": model, "modules": {}, "optimizers": [], "extra": {}}
    return own if rank else {**own, "job": JobState().to_tree(), "training": training}


# How many edits are worth making of each: there are more ways to go wrong in a grid.
EDITS = {
    "full": 150,
    "deltas": 300,
    "differential": 250,
    "grid": 280,
    "quantized grid": 230,
    "pairs": 150,
    "history pages": 150,
    "priority saves": 190,
    "two ranks": 300,
}
_GRID = hf.Grid(rule=hf.DeadShare(0.05), reset=False)
_KINDS: dict[str, Callable[[Store], None]] = {
    "full": _trained(hf.Full(), saves=2),
    "deltas": _trained(hf.Consecutive(), saves=4),
    "differential": _trained(hf.OneShot(), hf.Bits(4), odd=True),
    "grid": _trained(_GRID, saves=6),
    "quantized grid": _trained(_GRID, hf.Bits(2, difference=True), saves=6, odd=True),
    "pairs": _trained(hf.Grid(rule=hf.Pairs(0.0), reset=False, concatenate=False), hf.Bits(8), saves=4),
    "history pages": _trained(hf.Full(), saves=36, retention=hf.KeepLast(2)),
    "priority saves": _priority,
    "two ranks": _two_ranks,
}
