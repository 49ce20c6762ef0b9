"""Paired by seed: how much worse a training ends than the one that nothing happened to, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims._emulation_cases import UNDISTURBED
from benchmarks.claims._emulation_trainer import Trained

RESAMPLES = 10_000
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its interval of 95%: seeds are drawn anew, with all that was trained with each."""

    value: float
    low: float
    high: float


class Drops:
    """The loss of AUC of every training, by seed and case."""

    def __init__(self, trained: Sequence[Trained]) -> None:
        self._of = {(each.seed, each.key): each for each in trained}

    def seeds(self, *keys: str) -> list[int]:
        """Those that trained all of these."""
        wanted = (UNDISTURBED, *keys)
        return sorted(seed for seed in {seed for seed, _ in self._of} if all((seed, key) in self._of for key in wanted))

    def drop(self, seed: int, key: str) -> float:
        """Of one training."""
        return self._of[seed, UNDISTURBED].auc - self._of[seed, key].auc

    def pls(self, seed: int, key: str) -> float:
        """Of one training."""
        return self._of[seed, key].pls

    def auc(self, seed: int, key: str = UNDISTURBED) -> float:
        """Of one training."""
        return self._of[seed, key].auc

    def mean(self, key: str) -> Estimate | None:
        """The mean drop; None where it was not trained."""
        values = np.array([self.drop(seed, key) for seed in self.seeds(key)])
        return resampled(values, lambda each: each.mean(axis=-1)) if len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """PLS against loss of AUC (figure 12), through the origin: without a loss of samples nothing differs.

    For every seed the sums of PLS² and of PLS times the drop, over its draws; a slope is the ratio of their totals.
    """

    squares: FloatArray  # [seeds]
    products: dict[str, FloatArray]  # by way

    @classmethod
    def of(cls, drops: Drops, groups: Sequence[str], ways: Sequence[str]) -> Slopes:
        """Over the seeds that trained all of it."""
        keys = {way: [f"{group}/{way}" for group in groups] for way in ways}
        seeds = drops.seeds(*(key for each in keys.values() for key in each))
        pls = np.array([[drops.pls(seed, key) for key in keys[ways[0]]] for seed in seeds]).reshape(len(seeds), -1)
        losses = {way: [[drops.drop(seed, key) for key in keys[way]] for seed in seeds] for way in ways}
        products = {way: (pls * np.reshape(losses[way], pls.shape)).sum(axis=1) for way in ways}
        return cls(squares=(pls**2).sum(axis=1), products=products)

    def slope(self, way: str) -> Estimate:
        """Accuracy lost per PLS."""
        pairs = np.stack([self.products[way], self.squares])
        return resampled(pairs, _ratio_of_sums)

    def over(self, way: str, other: str) -> Estimate:
        """One slope over another, on the same failures."""
        return resampled(np.stack([self.products[way], self.products[other]]), _ratio_of_sums)


def resampled(values: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> Estimate:
    """A statistic of the last axis, and the middle 95% of what it is when seeds are drawn with replacement."""
    count = values.shape[-1]
    if not count:
        raise ValueError("time was up before all of one seed was trained: run it again, it goes on where it was")
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    found = statistic(values[..., drawn])
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value=float(statistic(values)), low=float(low), high=float(high))


def correlation(drops: Drops, keys: Sequence[str]) -> float:
    """Of PLS and loss of AUC, over all draws of all seeds (figure 11)."""
    pairs = [(drops.pls(seed, key), drops.drop(seed, key)) for key in keys for seed in drops.seeds(key)]
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def _ratio_of_sums(pair: FloatArray) -> FloatArray:
    upper, lower = pair.sum(axis=-1)
    return np.asarray(upper / lower)
