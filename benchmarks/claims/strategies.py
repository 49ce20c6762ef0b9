"""What each strategy writes and keeps, interval by interval (Check-N-Run, figures 3, 4, 8 and 9).

One training is protected by four checkpointers at once, one per strategy, so that all of them save the same states.
An interval is as long as it takes to modify about a quarter of the model, as in the paper. Interval 0 is the baseline
that every strategy takes first; averages leave it out.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch.optim import Optimizer

import holdfast as hf
from benchmarks.claims._modified import shares_since, shares_within
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.report import Figure, Report, Table
from benchmarks.training import build_dlrm, train_step
from holdfast.policy import Strategy
from holdfast.types import Kind

SEED = 8
DIM = 64
WIDTHS = (64,)  # of both MLPs: the tables are 99% of the model, as in the paper
STRATEGIES: Mapping[str, Strategy] = {
    "full": hf.Full(),
    "one_shot": hf.OneShot(),
    "consecutive": hf.Consecutive(),
    "intermittent": hf.Intermittent(),
}
STARTS = (0.0, 1 / 3, 2 / 3)  # of the samples; the paper's curves start at 0, 4 and 8 of 11 billion
LENGTHS = (0.25, 0.5, 1.0, 2.0)  # of an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train; ``scale`` multiplies Criteo Kaggle's cardinalities, and the interval goes with it."""

    scale: float
    batch_size: int
    batches_per_interval: int
    intervals: int

    @property
    def interval_samples(self) -> int:
        """Samples in an interval."""
        return self.batch_size * self.batches_per_interval

    @property
    def samples(self) -> int:
        """Samples in all intervals but the first, which ends with the baseline."""
        return self.interval_samples * self.intervals

    def batches(self) -> Iterator[range]:
        """The batches' numbers, interval by interval; the first interval ends with the baseline."""
        for number in range(self.intervals + 1):
            yield range(number * self.batches_per_interval, (number + 1) * self.batches_per_interval)


PLANS = {
    "tiny": Plan(scale=0.0005, batch_size=512, batches_per_interval=4, intervals=8),
    "small": Plan(scale=0.003, batch_size=2048, batches_per_interval=8, intervals=12),
    "full": Plan(scale=0.03, batch_size=2048, batches_per_interval=80, intervals=16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """What one strategy did at the end of an interval; sizes as shares of a full checkpoint."""

    kind: Kind
    written: float
    kept: float  # with KeepLast(1): the newest checkpoint and what it stands on
    checkpoints_kept: int


History: TypeAlias = dict[str, list[Save]]
Shares: TypeAlias = dict[float, list[float]]


def run(scale: str) -> Report:
    plan = PLANS[scale]
    history = _train(plan)
    stream = ClickStream(SEED, plan.scale)
    by_start = {start: _growth(stream, plan, start) for start in STARTS}
    by_length = {part: shares_within(stream, round(part * plan.interval_samples), plan.samples) for part in LENGTHS}
    written = {name: [save.written for save in saves] for name, saves in history.items()}
    kept = {name: [save.kept for save in saves] for name, saves in history.items()}
    return Report(
        title="What the strategies write and keep",
        tables=[
            _by_interval("Written, as a share of the model (figure 8)", written),
            _by_interval("Kept by KeepLast(1), as a share of the model (figure 9)", kept),
            _growth_table(plan, by_start),
            _length_table(by_length),
            _summary(history),
        ],
        figures=_figures(plan, history, by_start, by_length),
    )


def _train(plan: Plan) -> History:
    """Train; at the end of every interval each strategy saves the same state."""
    stream = ClickStream(SEED, plan.scale)
    model, optimizers = build_dlrm(stream.cardinalities, DIM, bottom=WIDTHS, top=WIDTHS, seed=SEED)
    history: History = {name: [] for name in STRATEGIES}
    with tempfile.TemporaryDirectory(prefix="holdfast-strategies-") as folder, ExitStack() as stack:
        urls = {name: str(Path(folder) / name) for name in STRATEGIES}
        guards = {name: stack.enter_context(_guard(urls[name], name, model, optimizers)) for name in STRATEGIES}
        for batches in plan.batches():
            for index in batches:
                train_step(model, stream.batch(index, plan.batch_size), optimizers)
                for guard in guards.values():
                    guard.step()
            for name, guard in guards.items():
                guard.save(wait=True)
                history[name].append(_last_save(hf.open_run(urls[name])))
    return history


def _guard(url: str, name: str, model: DLRM, optimizers: Sequence[Optimizer]) -> hf.Checkpointer:
    return hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        save=hf.Never(),
        strategy=STRATEGIES[name],
        retention=hf.KeepLast(1),
        settings=hf.Settings(grace_s=0.0, handle_sigterm=False),
    )


def _last_save(run: hf.Run) -> Save:
    kept = run.checkpoints()
    newest = kept[-1]
    return Save(
        kind=newest.kind,
        written=newest.size_bytes / newest.full_bytes,
        kept=sum(info.size_bytes for info in kept) / newest.full_bytes,
        checkpoints_kept=len(kept),
    )


def _baseline_interval(saves: Sequence[Save]) -> int | None:
    """When a strategy took its next baseline."""
    return next((number for number, save in enumerate(saves) if number and save.kind is Kind.FULL), None)


def _growth(stream: ClickStream, plan: Plan, start: float) -> list[float]:
    """The share modified since ``start`` at the end of each interval after it."""
    first = round(start * plan.intervals)
    ends = [number * plan.interval_samples for number in range(first, plan.intervals + 1)]
    return shares_since(stream, ends[0], ends[1:])


def _figures(plan: Plan, history: History, by_start: Shares, by_length: Shares) -> dict[str, Figure]:
    means = {name: _mean_written(saves) for name, saves in history.items()}
    figures: dict[str, Figure] = {
        "intermittent_baseline_interval": _baseline_interval(history["intermittent"]) or 0,
        "consecutive_saving_over_intermittent": 1 - means["consecutive"] / means["intermittent"],
        "intervals": plan.intervals,
        "interval_samples": plan.interval_samples,
    }
    for name, saves in history.items():
        figures[f"{name}_mean_written"] = means[name]
        figures[f"{name}_peak_kept"] = max(save.kept for save in saves)
        figures[f"{name}_most_checkpoints_kept"] = max(save.checkpoints_kept for save in saves)
        for number, save in enumerate(saves):
            figures[f"{name}_written_{number:02d}"] = save.written
            figures[f"{name}_kept_{number:02d}"] = save.kept
    for index, shares in enumerate(by_start.values()):
        figures |= {f"modified_from_start_{index}_{number:02d}": share for number, share in enumerate(shares, start=1)}
    for length, shares in by_length.items():
        figures[f"modified_in_{length:g}_intervals_mean"] = statistics.fmean(shares)
        figures[f"modified_in_{length:g}_intervals_least"] = min(shares)
        figures[f"modified_in_{length:g}_intervals_most"] = max(shares)
    return figures


def _mean_written(saves: Sequence[Save]) -> float:
    return statistics.fmean(save.written for save in saves[1:])


def _by_interval(caption: str, shares: Mapping[str, Sequence[float]]) -> Table:
    rows: list[Sequence[Figure]] = [
        (number, *map(_percent, row)) for number, row in enumerate(zip(*shares.values(), strict=True))
    ]
    return Table(caption=caption, headers=("interval", *shares), rows=rows)


def _summary(history: History) -> Table:
    rows: list[Sequence[Figure]] = [
        (
            name,
            _percent(_mean_written(saves)),
            _percent(max(save.kept for save in saves)),
            max(save.checkpoints_kept for save in saves),
            _baseline_interval(saves) or "never",
        )
        for name, saves in history.items()
    ]
    headers = ("strategy", "mean written", "most kept", "checkpoints a restore needs", "next baseline at interval")
    return Table(caption="In short", headers=headers, rows=rows)


def _growth_table(plan: Plan, by_start: Shares) -> Table:
    rows: list[Sequence[Figure]] = []
    for number in range(plan.intervals):
        ages = [number - round(start * plan.intervals) for start in by_start]
        cells = [_percent(shares[age]) if age >= 0 else "" for age, shares in zip(ages, by_start.values(), strict=True)]
        rows.append((f"{(number + 1) * plan.interval_samples:,}", *cells))
    headers = ("samples", *(f"since {round(start * plan.intervals) * plan.interval_samples:,}" for start in by_start))
    return Table(caption="Modified, by samples, from three starting points (figure 3)", headers=headers, rows=rows)


def _length_table(by_length: Shares) -> Table:
    rows: list[Sequence[Figure]] = [
        (f"{length:g}", len(shares), *map(_percent, (statistics.fmean(shares), min(shares), max(shares))))
        for length, shares in by_length.items()
    ]
    headers = ("length, intervals", "windows", "mean", "least", "most")
    return Table(caption="Modified within windows of one length (figure 4)", headers=headers, rows=rows)


def _percent(share: float) -> str:
    return f"{share:.1%}"
