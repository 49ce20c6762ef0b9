"""How long it takes to get back to any saved point, what keeping them all costs, and what the grid adds to a save.

One trace of updates is saved by each strategy; then every tenth checkpoint is recovered, by one fresh process per
strategy, in turns, and every row is checked. What counts is the time above the baseline: head, manifests, plan, rows.
Beside them stands the floor: the same rows from one flat file. Ratios are of sums over the recovered checkpoints;
where a strategy has taken another baseline since, its floor and its wanted rows are those above that one. The keys
without a prefix are those of dim 128. Caches are dropped with ``posix_fadvise``, file by file.

``grid_over_differential`` compares with a differential of one baseline, which wants the same rows as the grid. By the
intermittent rule (``grid_over_intermittent``) a new baseline comes every twenty-odd intervals here, so that far fewer
rows stand above it; it pays for them in bytes, and ``grid_bytes_over_differential_bytes`` is about this rule.

The keys that begin with ``criteo`` are about a model of 26 tables, most of them small.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf
from benchmarks.claims import _recovery_criteo, _recovery_models, _recovery_sweeps
from benchmarks.claims._recovery_criteo import CriteoPlan
from benchmarks.claims._recovery_figures import Findings, findings
from benchmarks.claims._recovery_models import ModelPlan
from benchmarks.claims._recovery_replay import Repeats, replay
from benchmarks.claims._recovery_sweeps import SweepPlan
from benchmarks.claims._trace import zipf_trace
from benchmarks.report import Figure, Report, Table
from holdfast.policy import Strategy

SEED = 7
STRATEGIES: Mapping[str, Strategy] = {
    "naive": hf.Consecutive(),
    "differential_once": hf.OneShot(),
    "intermittent": hf.Intermittent(),
    "grid": hf.Grid(),
    "grid_no_reset": hf.Grid(reset=False),
    "grid_pairs_0": hf.Grid(rule=hf.Pairs(0.0), reset=False),
    "grid_pairs_002": hf.Grid(rule=hf.Pairs(0.02), reset=False),
}
RIVALS = ("naive", "grid")
DEFAULTS = ("naive", "differential_once", "intermittent", "grid")  # without other ways to keep a grid
MAIN_DIM = 128  # the one whose figures have no prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table to replay a trace on, and the strategies to do it with."""

    rows: int
    dim: int
    repeats: Repeats
    strategies: Sequence[str] = tuple(STRATEGIES)
    every: int = 10  # of the checkpoints one in so many is recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    shapes: Sequence[Shape]
    intervals: int
    criteo: CriteoPlan | None = None
    sweep: SweepPlan | None = None
    model: ModelPlan | None = None


_WARM, _ALL = Repeats(warm=3, cold=0), Repeats(warm=5, cold=3)
PLANS = {
    "tiny": Plan(
        shapes=[
            Shape(
                rows=20_000,
                dim=128,
                strategies=("naive", "differential_once", "grid"),
                every=4,
                repeats=Repeats(warm=1, cold=1),
            )
        ],
        intervals=8,
    ),
    "small": Plan(
        shapes=[Shape(rows=500_000, dim=128, strategies=DEFAULTS, repeats=_WARM)],
        intervals=50,
        criteo=CriteoPlan(),
    ),
    "full": Plan(
        shapes=[Shape(rows=500_000, dim=128, repeats=_ALL), Shape(rows=2_000_000, dim=16, repeats=_ALL)],
        intervals=150,
        criteo=CriteoPlan(repeats=15, strategies=tuple(_recovery_criteo.STRATEGIES), busy=(2, 6)),
        sweep=SweepPlan(rows=500_000, dim=128, intervals=150, every=30, repeats=_WARM, seed=SEED),
        model=ModelPlan(scale=0.03, batch_size=512, batches_per_interval=8, intervals=60, every=10, repeats=3),
    ),
}


def run(scale: str) -> Report:
    plan = PLANS[scale]
    shown: list[Table] = []
    figures: dict[str, Figure] = {}
    wrong_rows = 0
    for part in _measure(plan):
        shown += part.tables
        figures |= part.figures
        wrong_rows += part.wrong_rows
    figures |= {"wrong_rows": wrong_rows, "checkpoints": plan.intervals}
    return Report(title="Back to any saved point", tables=shown, figures=figures)


def _measure(plan: Plan) -> Iterator[Findings]:
    for shape in plan.shapes:
        yield _replay(shape, plan)
    if plan.criteo:
        yield _recovery_criteo.measure(plan.criteo)
    if plan.sweep:
        for sweep in (_recovery_sweeps.rules(), _recovery_sweeps.checks(), *_recovery_sweeps.lengths()):
            yield _recovery_sweeps.measure(sweep, plan.sweep)
    if plan.model:
        for name in _recovery_models.MODELS:
            yield _recovery_models.measure(name, plan.model)


def _replay(shape: Shape, plan: Plan) -> Findings:
    trace = zipf_trace(rows=shape.rows, dim=shape.dim, intervals=plan.intervals, seed=SEED)
    strategies = {name: STRATEGIES[name] for name in shape.strategies}
    with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as folder:
        found = replay(trace, strategies, Path(folder), every=shape.every, repeats=shape.repeats, rivals=RIVALS)
    return findings(found, f"{shape.rows:,} rows of {shape.dim}", "" if shape.dim == MAIN_DIM else f"dim{shape.dim}_")
