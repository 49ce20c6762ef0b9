"""Paired drops: what a setting loses with each seed beside the run without failures, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.claims._accuracy_seeds import PLAIN, Result, missing
from benchmarks.claims._accuracy_settings import SETTINGS

TOLERATED = 1e-4  # of the accuracy: the paper's 0.01%
_NORMAL_95 = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Of a metric, as a share of what it is without failures; positive is worse."""

    seeds: int
    mean: float
    deviation: float

    @property
    def half_width(self) -> float:
        """From the mean to the upper end of the one-sided interval of 95%, by Student's distribution."""
        return student_95(self.seeds - 1) * self.deviation / math.sqrt(self.seeds) if self.seeds > 1 else math.inf

    @property
    def bound(self) -> float:
        """The upper end: a mean drop above it would show so little in one of twenty measurements."""
        return self.mean + self.half_width


@dataclass(frozen=True, slots=True, kw_only=True)
class Drops:
    """What a setting costs."""

    auc: Drop
    log_loss: Drop
    points: Sequence[float]  # mean drop of the AUC on the way


def drops(results: Sequence[Result]) -> dict[str, Drops]:
    """By setting, over the seeds with which all settings were trained."""
    by_key = {(each.seed, each.setting): each for each in results}
    seeds = whole_seeds(results)
    pairs = {name: [(by_key[seed, PLAIN], by_key[seed, name]) for seed in seeds] for name in SETTINGS}
    return {name: _drops(each) for name, each in pairs.items()} if seeds else {}


def whole_seeds(results: Sequence[Result]) -> list[int]:
    """The seeds with which every setting was trained."""
    return sorted(seed for seed in {each.seed for each in results} if not missing(results, seed))


def _drops(pairs: Sequence[tuple[Result, Result]]) -> Drops:
    points = zip(
        *([1 - b / a for a, b in zip(plain.points, own.points, strict=True)] for plain, own in pairs), strict=True
    )
    return Drops(
        auc=_drop([1 - own.auc / plain.auc for plain, own in pairs]),
        log_loss=_drop([own.log_loss / plain.log_loss - 1 for plain, own in pairs]),
        points=[statistics.fmean(each) for each in points],
    )


def _drop(values: Sequence[float]) -> Drop:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Drop(seeds=len(values), mean=statistics.fmean(values), deviation=deviation)


def student_95(freedom: int) -> float:
    """The 95% quantile of Student's t, by Cornish and Fisher's expansion: within 0.3% from 4 degrees on, low below."""
    z, n = _NORMAL_95, max(1, freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
