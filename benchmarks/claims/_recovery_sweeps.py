"""What the settings of a grid do: its rule and the rule's number, its checks, concatenation, the interval's length.

IncrCP's figures 13, 14 and 17, on the trace of the ``recovery`` claim. The grids take no later baselines here, so that
nothing but the setting differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf
from benchmarks.claims._recovery_figures import Findings
from benchmarks.claims._recovery_replay import Repeats, Replayed, replay
from benchmarks.claims._trace import SHARE, zipf_trace
from benchmarks.report import Figure, Table
from holdfast.policy import Strategy

_SKIPS = ("range_skips", "membership_skips", "actual_skips")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Strategies to compare on one trace."""

    key: str  # of its figures
    caption: str
    strategies: Mapping[str, Strategy]
    share: float = SHARE  # of the rows, changed in an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """How much to measure for each."""

    rows: int
    dim: int
    intervals: int
    every: int
    repeats: Repeats
    seed: int


def rules() -> Sweep:
    """The paper's threshold and the dead share, over their range (figure 13)."""
    pairs = {f"pairs_{number:g}": hf.Pairs(number) for number in (0.0, 0.01, 0.02, 0.05, 0.1)}
    shares = {f"dead_share_{number:g}": hf.DeadShare(number) for number in (0.1, 0.2, 0.25, 0.3, 0.4, 0.5)}
    return Sweep(
        key="rule",
        caption="The rule and its number (IncrCP, figure 13)",
        strategies={name: hf.Grid(rule=rule, reset=False) for name, rule in (pairs | shares).items()},
    )


def checks() -> Sweep:
    """The paper's rule with more and more of its checks, with and without concatenation (figure 14)."""
    grids = {}
    for concatenate in (True, False):
        for count, name in enumerate(("no_check", "range", "membership", "actual")):
            rule = hf.Pairs(0.02, check_range=count >= 1, check_membership=count >= 2, check_actual=count >= 3)
            key = name if concatenate else f"{name}_apart"
            grids[key] = hf.Grid(rule=rule, reset=False, concatenate=concatenate)
    return Sweep(key="checks", caption="Checks, each added to those before (IncrCP, figure 14)", strategies=grids)


def lengths() -> list[Sweep]:
    """Shorter and longer intervals, by what they change (figure 17)."""
    return [
        Sweep(
            key=f"interval_{share:g}",
            caption=f"Intervals that change {share:.2%} of the rows (IncrCP, figure 17)",
            strategies={"naive": hf.Consecutive(), "grid": hf.Grid(reset=False)},
            share=share,
        )
        for share in (0.0025, 0.005, 0.02, 0.04)
    ]


def measure(sweep: Sweep, plan: SweepPlan) -> Findings:
    """Replay the sweep's trace with each of its strategies."""
    trace = zipf_trace(rows=plan.rows, dim=plan.dim, intervals=plan.intervals, seed=plan.seed, share=sweep.share)
    with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as folder:
        found = replay(trace, sweep.strategies, Path(folder), every=plan.every, repeats=plan.repeats)
    lines = {name: _line(found, name) for name in sweep.strategies}
    rows: list[Sequence[Figure]] = [(name, *line.values()) for name, line in lines.items()]
    headers = ("strategy", *(key.replace("_", " ") for key in next(iter(lines.values()))))
    figures = {f"{sweep.key}_{name}_{key}": value for name, line in lines.items() for key, value in line.items()}
    table = Table(caption=sweep.caption, headers=headers, rows=rows)
    return Findings(tables=[table], figures=figures, wrong_rows=found.wrong_rows)


def _line(found: Replayed, name: str) -> dict[str, Figure]:
    times, written = found.warm[name], found.written[name]
    recovery_s = sum(one.seconds for one in times)
    return {
        "recovery_s": recovery_s,
        "recovery_over_floor": recovery_s / sum(one.floor_s for one in times),
        "rows_read_over_wanted": sum(one.rows_read for one in times) / sum(one.rows_wanted for one in times),
        "rearranged_over_saved": written.counters["written_bytes"] / written.saved_bytes,
        "rearranging_s": written.counters["seconds"],
        "kept_over_saved": written.kept_bytes / written.saved_bytes,
        **{key: written.counters[key] for key in _SKIPS},
    }
