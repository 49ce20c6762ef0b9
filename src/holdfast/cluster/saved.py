"""What a checkpoint of a job holds besides table rows, in the form that a Checkpointer stores and reads as well.

Dense parameters and their slots stand there as those of a torch model and its optimizers. How far each worker had come
stands among the extras; the place of the first worker is also that of a single process that goes on from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.checkpoint.shards import Loaded, LoadedState, torch_optimizer
from holdfast.checkpoint.shards import Shard as TableShard
from holdfast.checkpoint.shards.torch_state import STEP
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.payload import Arrays, Floats
from holdfast.cluster.place_tree import host_place, place_tree
from holdfast.cluster.placement import DensePart, Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.shard import DenseShard, Shard, start_slots
from holdfast.errors import ModelMismatch
from holdfast.format.host_values import arrays_in
from holdfast.format.state import RankState
from holdfast.policy.optimizer import Optimizer
from holdfast.types import UpdateRule

CLUSTER = "holdfast.cluster"  # among the extras


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePieces:
    """The dense parameters and their slots, each whole."""

    values: Mapping[str, Floats]
    slots: Mapping[str, Mapping[str, Floats]]  # by parameter, then by slot


def dense_arrays(shard: DenseShard) -> Arrays:
    """Of one server, as arrays that can be sent: the values, then the slots of each part."""
    slots = [values.copy() for part in shard.piece.parts for _, values in sorted(shard.slots[part.name].items())]
    return (shard.values.copy(), *slots)


def joined(placement: Placement, rule: UpdateRule, pieces: Sequence[Arrays]) -> DensePieces:
    """All servers' pieces put together, in the order of servers."""
    names = sorted(slot.name for slot in rule.slots)
    values: dict[str, list[Floats]] = {each.name: [] for each in placement.plan.dense}
    slots: dict[str, dict[str, list[Floats]]] = {name: {slot: [] for slot in names} for name in values}
    for piece, (flat, *rest) in zip(placement.dense, pieces, strict=True):
        found = iter(rest)
        for part in piece.parts:
            values[part.name].append(flat[part.at : part.at + part.rows * part.width])
            for slot in names:
                slots[part.name][slot].append(next(found))
    shapes = {each.name: each.shape for each in placement.plan.dense}
    return DensePieces(
        values={name: _whole(parts).reshape(shapes[name]) for name, parts in values.items()},
        slots={name: {slot: _whole(parts) for slot, parts in found.items()} for name, found in slots.items()},
    )


def training_tree(
    placement: Placement,
    dense: DensePieces,
    progress: Mapping[int, Progress],
    *,
    optimizer: Optimizer,
    dense_optimizer: Optimizer,
) -> dict[str, Any]:
    """For the first part of a checkpoint."""
    plan = placement.plan
    shapes = {each.name: each.shape for each in plan.dense if each.table is None}
    state = {name: _torch_slots(dense.slots[name], shape) for name, shape in shapes.items()}
    tables = {each.name: (each.rows, each.width) for each in plan.tables}
    small = {f"{each.table}.weight": (each.rows, each.width) for each in plan.dense if each.table is not None}
    workers = {worker: (each.pushed, each.place) for worker, each in progress.items()}
    buffers = place_tree(progress[0].place).get("buffers", {}) if 0 in progress else {}
    step = max((each.pushed for each in progress.values()), default=0)
    return {
        "model": {**{name: dense.values[name] for name in shapes}, **arrays_in(buffers)},
        "modules": {},
        "optimizers": [
            torch_optimizer(optimizer, step=step, tables=tables),
            torch_optimizer(dense_optimizer, step=step, tables=small, slots=state, dense=True),
        ],
        "extra": {CLUSTER: {"workers": workers, "row_steps": _row_steps(dense, shapes)}},
    }


def rank_state(step: int, progress: Progress | None) -> RankState:
    """Of the part that holds this worker's place, or of one more than there are workers."""
    tree = {} if progress is None else place_tree(progress.place)
    return RankState(step=step, reader=tree.get("reader"), rng=tree.get("rng"))


def held_state(step: int, progress: Mapping[int, Progress]) -> RankState:
    """Of a priority save: what its rows hold of each worker."""
    return RankState(step=step, reader={str(worker): (each.pushed, each.place) for worker, each in progress.items()})


def held_progress(state: RankState | None) -> dict[int, Progress]:
    """The inverse of ``held_state``."""
    held = {} if state is None or state.reader is None else state.reader
    return {int(worker): Progress(pushed, place) for worker, (pushed, place) in held.items()}


def saved_progress(state: LoadedState, plan: ModelPlan, *, step: int) -> dict[int, Progress]:
    """How far each worker had come. In a run of a Checkpointer each rank was a worker."""
    found = state.training["extra"].get(CLUSTER)
    if found is not None:
        return {int(worker): Progress(pushed, place) for worker, (pushed, place) in found["workers"].items()}
    specs: list[TableSpec | DenseSpec] = [*plan.tables, *plan.dense]
    parameters = {name for each in specs for name in (each.name, *each.aliases)}
    buffers = {name: each for name, each in state.training["model"].items() if name not in parameters}
    places = [host_place(step, reader=each.reader, rng=each.rng, buffers=buffers) for each in state.ranks]
    return {rank: Progress(step, place) for rank, place in enumerate(places)} if step else {}


def load_dense(shard: DenseShard, training: Mapping[str, Any]) -> None:
    """Fill a server's piece from the state of a checkpoint. Slots that it does not have begin anew."""
    model = arrays_in(dict(training["model"]))
    states = [each["state"] for each in training["optimizers"]]
    row_steps = training["extra"].get(CLUSTER, {}).get("row_steps", {})
    for part in shard.piece.parts:
        if part.name in shard.tables:
            continue  # its rows are loaded with those of large tables
        if part.name not in model:
            raise ModelMismatch(f"the checkpoint does not hold the parameter {part.name}; start a new run")
        rows = slice(part.first, part.first + part.rows)
        shard.values[part.at : part.at + part.rows * part.width] = _as_rows(model[part.name], part)[rows].reshape(-1)
        found = dict(next((state[part.name] for state in states if state.get(part.name)), {}))
        if part.name in row_steps:
            found[STEP] = row_steps[part.name]
        start_slots(shard.rule, shard.slots[part.name], shard.slots[part.name].keys() - found.keys())
        for slot, values in shard.slots[part.name].items():
            if slot in found:
                _fill_slot(values, arrays_in({slot: found[slot]})[slot], part, rows)


def load_missing(rows: Shard, shards: Iterable[TableShard], loaded: Loaded) -> None:
    """Slots of tables that a checkpoint does not have begin anew; torch counts steps of whole parameters."""
    assert loaded.state is not None
    small = {each.table for each in rows.placement.plan.dense}
    counts: dict[str, Any] = {}
    for optimizer in loaded.state.training["optimizers"]:
        counts |= {name: each[STEP] for name, each in optimizer["state"].items() if STEP in each}
    for shard in shards:
        missing = loaded.missing.get(shard.table, ())
        rule = rows.dense.rule if shard.table in small else rows.rule
        start_slots(rule, shard.columns, missing)
        if STEP in missing and f"{shard.table}.weight" in counts:
            shard.columns[STEP][...] = arrays_in({STEP: counts[f"{shard.table}.weight"]})[STEP]


def _fill_slot(values: Floats, stored: Any, part: DensePart, rows: slice) -> None:
    if values.ndim == 1:  # one number per row; what torch counts has one per parameter
        numbers = np.asarray(stored, np.float32).reshape(-1)
        values[:] = numbers[rows] if len(numbers) > 1 else numbers
    else:
        values[:] = _as_rows(stored, part)[rows]


def _as_rows(stored: Any, part: DensePart) -> Floats:
    return np.asarray(stored, np.float32).reshape(-1, part.width)


def _whole(parts: Iterable[Floats]) -> Floats:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _torch_slots(slots: Mapping[str, Floats], shape: tuple[int, ...]) -> dict[str, Any]:
    """Slots as torch keeps them: in the parameter's shape, the count of steps once; numbers of rows as they are."""
    return {
        name: np.array(values.max(initial=0.0), np.float32)
        if name == STEP
        else values.reshape(shape if values.ndim > 1 else -1)
        for name, values in slots.items()
    }


def _row_steps(dense: DensePieces, names: Iterable[str]) -> dict[str, Floats]:
    """The counts of parameters whose rows differ, because a server that died had some of them."""
    found = {name: dense.slots[name][STEP] for name in names if STEP in dense.slots[name]}
    return {name: counts for name, counts in found.items() if np.unique(counts).size > 1}


def step_of(progress: Mapping[int, Progress], *, synchronous: bool) -> int:
    """Optimizer steps taken: one for each push, or one for a push of each worker."""
    pushed = [each.pushed for each in progress.values()] or [BEGINNING.pushed]
    return max(pushed) if synchronous else sum(pushed)
