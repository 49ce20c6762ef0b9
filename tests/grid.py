"""A small model whose rows are moved one by one, and a run that must hold each of its states, for tests of the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SparseAdam

import holdfast as hf
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.plan_builder import plan_tables
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.format.manifest import Manifest
from holdfast.policy import Strategy
from holdfast.run import Run
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import LocalStore, Store
from holdfast.testing.runtime import with_runtime

ROWS = {"wide": 60, "short": 17, "flat": 25}
SETTINGS: dict[str, Any] = {
    "buffer_bytes": 2 * 65536,
    "frame_bytes": 65536,  # half of the widest table
    "grace_s": 0.0,
    "uploads": 1,
    "retry_s": 0.0,
    "takeover_s": 0.0,
    "handle_sigterm": False,
}

Columns = dict[str, Tensor]
State = dict[str, Columns]  # by table and column
Ids = Mapping[str, Sequence[int]]


class Model:
    """Tables of several types, each moved by SparseAdam: its slots appear with a table's first gradient."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.module = nn.ModuleDict(
            {
                "wide": nn.Embedding(ROWS["wide"], 160, sparse=True),
                "short": nn.Embedding(ROWS["short"], 3, sparse=True, dtype=torch.bfloat16),
            }
        )
        self.flat = nn.Parameter(torch.zeros(ROWS["flat"], dtype=torch.float64))  # one number a row
        self.module.register_parameter("flat_weight", self.flat)
        self.parameters = {"wide": self.module["wide"].weight, "short": self.module["short"].weight, "flat": self.flat}
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.copy_(torch.rand(parameter.shape, generator=generator))
        self.optimizer = SparseAdam(list(self.parameters.values()), lr=0.1)

    @property
    def parts(self) -> dict[str, Any]:
        """What a Checkpointer and a restore are given."""
        return {"model": self.module, "optimizer": self.optimizer, "tables": {"flat": self.flat}}

    def step(self, ids: Ids, seed: int) -> None:
        """Move these rows, and no others."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.parameters.items():
            parameter.grad = None
            if name in ids:
                rows = torch.tensor(sorted(ids[name]), dtype=torch.int64)
                values = torch.rand((len(rows), *parameter.shape[1:]), generator=generator).to(parameter.dtype) + 0.5
                parameter.grad = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
        self.optimizer.step()

    def state(self) -> State:
        """Every row of every table, weight and slots."""
        return {name: self._columns(parameter) for name, parameter in self.parameters.items()}

    def _columns(self, parameter: nn.Parameter) -> Columns:
        slots = {k: v for k, v in self.optimizer.state.get(parameter, {}).items() if k.startswith("exp_avg")}
        return {name: tensor.detach().clone() for name, tensor in {"weight": parameter, **slots}.items()}


@dataclass(slots=True)
class Truth:
    """What every checkpoint of a run must hold, and which rows were moved since the one it stands on; by its id."""

    states: dict[str, State] = field(default_factory=dict)
    moved: dict[str, dict[str, set[int]]] = field(default_factory=dict)

    def check(self, run: Run, *checkpoints: str) -> None:
        """These checkpoints, or all that are kept, are restored exactly, and so are their rows one by one."""
        for checkpoint in checkpoints or [info.id for info in run.checkpoints()]:
            assert same(restored(run, checkpoint), self.states[checkpoint]), checkpoint
            for table, columns in self.states[checkpoint].items():
                ids = torch.randperm(ROWS[table], generator=torch.Generator().manual_seed(len(checkpoint)))
                rows = run.read_rows(table, ids, step=checkpoint)
                assert same({table: rows}, {table: {name: column[ids] for name, column in columns.items()}})

    def wanted(self, run: Run, checkpoint: str) -> int:
        """How many rows of a checkpoint differ from those that its tables stand on."""
        parts = manifests(run.store)
        count = 0
        for table in ROWS:
            rows: set[int] = set()
            for entry in reversed(lineage(run.head(), checkpoint)):
                if any(part.spec.name == table and part.whole for m in parts[entry.info.id] for part in m.tables):
                    break
                rows |= self.moved[entry.info.id].get(table, set())
            count += len(rows)
        return count


class Trainer:
    """Moves rows and saves, from wherever the run stands; tells a Truth what each checkpoint must hold."""

    def __init__(
        self,
        url: str | Store,
        strategy: Strategy,
        truth: Truth,
        *,
        step: int | None = None,
        retention: hf.Retention = hf.KeepAll(),  # noqa: B008 - frozen
        runtime: Runtime = SYSTEM,
        **settings: Any,
    ) -> None:
        self.model = Model()
        self.truth = truth
        self._run = hf.open_run(url)
        self._moved: defaultdict[str, set[int]] = defaultdict(set)
        self.guard = with_runtime(hf.Checkpointer, runtime)(
            url,
            **self.model.parts,
            save=hf.Never(),
            strategy=strategy,
            retention=retention,
            overlap=hf.Overlap.WAIT,
            settings=hf.Settings(**{**SETTINGS, **settings}),
        )
        self.guard.resume(step)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.guard.close()
        else:
            self.guard.__exit__(kind, *rest)  # type: ignore[arg-type]

    def move(self, ids: Ids) -> None:
        """One step that moves these rows."""
        self.model.step(ids, seed=hash((self.guard.steps, len(self.truth.states))) % 2**31)
        for table, rows in ids.items():
            self._moved[table] |= set(rows)
        self.guard.step()

    def save(self, ids: Ids, *, whole: Sequence[str] = (), tag: str | None = None, arranged: bool = False) -> str:
        """Move these rows, save some tables whole, and wait for the commit, or until all is arranged."""
        self.move(ids)
        for name in whole:
            self.guard.mark(name, None)
        self.guard.save(tag=tag, wait=True)
        if arranged:
            self.guard.drain(arranged=True)
        return self.remember()

    def remember(self) -> str:
        """The newest checkpoint holds the state of now."""
        info = self._run.checkpoints()[-1]
        self.truth.states[info.id] = self.model.state()
        self.truth.moved[info.id] = dict(self._moved)
        self._moved.clear()
        return info.id


def rows_above(run: Run, checkpoint: str) -> int:
    """How many records a restore reads above the rows of each table's last whole save."""
    return run.restore_plan(checkpoint).rows - sum(ROWS.values())


def bundles_stored(store: Store) -> set[str]:
    """Every bundle that is there."""
    return {info.name for info in store.list("data/") if info.name.endswith(".safetensors")}


def bundles_named(store: Store) -> set[str]:
    """Every bundle that a kept checkpoint refers to."""
    return {bundle.name for parts in manifests(store).values() for part in parts for bundle in part.bundles}


def unused_bytes(store: Store) -> int:
    """Bytes of bundles, their heads left out, that nothing refers to."""
    used: defaultdict[str, int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for manifest in (part for parts in manifests(store).values() for part in parts):
        chunks = (*manifest.state, *(chunk for part in manifest.tables for chunk in part.chunks))
        for chunk in chunks:
            bundle = manifest.bundles[chunk.place.bundle]
            sizes[bundle.name] = bundle.size_bytes - bundle.head_bytes
            used[bundle.name] += chunk.place.length
    return sum(sizes[name] - used[name] for name in sizes)


def manifests(store: Store) -> dict[str, tuple[Manifest, ...]]:
    """Every kept checkpoint's manifests, by its id; nobody may rearrange them meanwhile."""
    fetcher = Fetcher(store)
    return {entry.info.id: fetcher.parts(entry) for entry in Run(store).head().entries}


def plan_facts(plans: Mapping[str, TablePlan]) -> dict[str, Any]:
    """All that a restore makes of plans."""
    return {
        name: (plan.spec, plan.baseline, plan.arranged, [sorted(map(_read_facts, reads)) for reads in plan.generations])
        for name, plan in plans.items()
    }


def _read_facts(read: Read) -> tuple[Any, ...]:
    chunk = replace(read.chunk, place=replace(read.chunk.place, bundle=0))
    part = (read.part.start, read.part.stop, read.part.whole, repr(read.part.spec))
    return (*read.key, read.checkpoint, read.rows, read.later, read.settled, repr(read.bundle), repr(chunk), part)


def check_plans(store: Store) -> None:
    """Of every kept checkpoint the plan, from whatever outlines there are, is the one that its manifests give."""
    head, fetcher = Run(store).head(), Fetcher(store)
    for entry in head.entries:
        expected = plan_tables([fetcher.parts(each) for each in lineage(head, entry.info.id)])
        assert plan_facts(plan_checkpoint(Fetcher(store), head, entry.info.id)) == plan_facts(expected)


def as_files(store: Store, folder: Path) -> LocalStore:
    """The same objects in files, which are read in a way of their own."""
    for info in store.list():
        path = folder / info.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.name))
    return LocalStore(folder)


def restored(run: Run, checkpoint: str | int | None) -> State:
    """The tables of a checkpoint, read into a model that knows nothing of it."""
    model = Model()
    run.restore(checkpoint, **model.parts)
    return model.state()


def same(first: Mapping[str, Columns], second: Mapping[str, Columns]) -> bool:
    """Whether all columns of all tables are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[table].keys() == second[table].keys()
        and all(_equal(first[table][column], second[table][column]) for column in first[table])
        for table in first
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
