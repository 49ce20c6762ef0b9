"""How large a strategy's checkpoints are, and how much a restore reads, as a function of the save interval.

The strategies decide as they do in a training: their own code is asked at every save of a simulated job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from holdfast.errors import ConfigurationError
from holdfast.policy import Auto, DeadShare, Grid, Stored, Strategy, StrategyContext
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration
from holdfast.types import DeltaSizes, Kind

_MOST_SAVES: Final = 128  # enough of them for every strategy's sizes to repeat or to settle


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedShare:
    """The share of the rows that changes within a time: much of it soon, the rest ever more slowly.

    A power of the time. By default what Check-N-Run reports (section 4.1, figure 8): 26% in half an hour, half of the
    model in five.
    """

    share: float = 0.26
    after_s: float = 1800.0
    growth: float = 0.284  # log(0.5 / 0.26) / log(10)

    def __post_init__(self) -> None:
        fits = is_finite_number(self.share) and 0 < self.share <= 1
        require(fits, self, "share", "above 0 and at most 1", self.share)
        require_duration(self, "after_s", self.after_s)
        require(is_finite_number(self.growth) and 0 <= self.growth <= 1, self, "growth", "from 0 to 1", self.growth)

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Self:
        """From two measurements, each ``(seconds, share)``."""
        (early_s, less), (late_s, more) = sorted((first, second))
        if not (0 < early_s < late_s and 0 < less <= more <= 1):
            raise ConfigurationError(
                f"ChangedShare: {first} and {second} are not two measurements of a share that grows with time"
            )
        return cls(share=less, after_s=early_s, growth=math.log(more / less) / math.log(late_s / early_s))

    def within(self, time_s: float) -> float:
        """The share that changes in that time."""
        return min(1.0, self.share * math.pow(time_s / self.after_s, self.growth))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """How many bytes a row takes in a checkpoint, against the 32-bit row in memory."""

    bits: int = 32
    dim: int = 64

    ID_BYTES = 2  # sorted ids pack to a byte or two
    SCALE_BYTES = 4  # scale and zero point in half precision

    def __post_init__(self) -> None:
        require(self.bits in (2, 3, 4, 8, 32), self, "bits", "2, 3, 4, 8 or 32 (exact)", self.bits)
        require_count(self, "dim", self.dim)

    @property
    def is_exact(self) -> bool:
        """Whether a restore gives every bit back."""
        return self.bits == 32

    @property
    def size_share(self) -> float:
        """Bytes stored for each byte in memory."""
        overhead = self.ID_BYTES + (0 if self.is_exact else self.SCALE_BYTES)
        return (self.dim * self.bits / 8 + overhead) / (4 * self.dim)


def stored_for(restores: float, *, difference: bool = False) -> Stored:
    """The fewest bits shown to keep this many restores within 0.01% of the AUC, as ``hf.Auto`` decides."""
    hours = restores  # one an hour
    precision = Auto(failure_probability=1.0, nodes=1, expected_hours=hours, difference=difference)
    return precision.decide("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of all nodes together."""

    copy_bytes_per_s: float  # into the snapshot: what training waits for
    write_bytes_per_s: float  # to the store, in the background
    read_bytes_per_s: float  # back from it

    def __post_init__(self) -> None:
        for name in ("copy_bytes_per_s", "write_bytes_per_s", "read_bytes_per_s"):
            require_duration(self, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The means over a job's saves."""

    rows: float  # that one save copies, as a share of all
    written: float  # by one save, as a share of a baseline's bytes
    read: float  # by a restore, likewise


def sizes_of(
    strategy: Strategy,
    *,
    changed: ChangedShare,
    interval_s: float,
    total_s: float,
    delta_share: float = 1.0,
) -> Sizes:
    """Simulate a job's saves; ``delta_share`` is the size of a row in a delta relative to a baseline."""
    saves = max(1, min(_MOST_SAVES, int(total_s / interval_s)))
    rows, written, read = list[float](), list[float](), list[float]()
    deltas = DeltaSizes()
    for _ in range(saves):
        since_baseline = changed.within((deltas.count + 1) * interval_s)
        context = StrategyContext(
            baseline_exists=True,  # there is always one at step 0
            deltas=deltas,
            increment_share=changed.within(interval_s) * delta_share,
            changed_share=since_baseline * delta_share,
        )
        kind = strategy.decide(context)
        if kind is Kind.FULL:
            share, size, above, deltas = 1.0, 1.0, 0.0, DeltaSizes()
        else:
            share = since_baseline if kind is Kind.DIFFERENTIAL else changed.within(interval_s)
            size = above = share * delta_share
            deltas = deltas.with_next(size)
        if kind is Kind.INCREMENTAL:
            above = _read_of_increments(strategy, deltas, since_baseline * delta_share)
        rows.append(share)
        written.append(size)
        read.append(1 + above)
    return Sizes(rows=math.fsum(rows) / saves, written=math.fsum(written) / saves, read=math.fsum(read) / saves)


def _read_of_increments(strategy: Strategy, deltas: DeltaSizes, since_baseline: float) -> float:
    """All of them; of a grid, what lives, and of what was replaced no more than its rule leaves in place."""
    if not isinstance(strategy, Grid):
        return deltas.total
    if isinstance(strategy.rule, DeadShare) and strategy.rule.share < 1:
        return min(since_baseline, strategy.rule.share / (1 - strategy.rule.share))
    return since_baseline
