"""Which values a field shows: a few all the time, most of them hardly ever, and not the same ones for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.schema import KAGGLE_CARDINALITIES

# The value of popularity rank r has weight (r + HEAD)^-exponent. Fitted to three figures of a sample of 137,000 real
# rows: the top 1% of the values take 73% of the accesses, the top 10% take 89%, and 76% of the values are seen once.
HEAD = 6.0
EXPONENT = 1.05
MIDDLE_EXPONENT = 1.4
MIDDLE_CARDINALITIES = (9_000, 1_000_000)

STEADY_BELOW = 1_000  # fields of fewer values are things like a device's type, whose popular values stay
GOLDEN = (5**0.5 - 1) / 2


class Popularity:
    """Turns uniform numbers into ids, 26 a sample, by a power law over ranks and a slow change of who has which rank.

    The value at a rank is replaced every ``drift_samples`` samples, each rank at its own moment, so that of the
    popular values a share of n / ``drift_samples`` is new after n samples.
    """

    def __init__(self, rng: np.random.Generator, cardinalities: Sequence[int], drift_samples: int) -> None:
        real = np.array(KAGGLE_CARDINALITIES)
        self._rows = np.array(cardinalities)
        low, high = MIDDLE_CARDINALITIES
        exponent = np.where((low <= real) & (real < high), MIDDLE_EXPONENT, EXPONENT)
        self._power = 1 / (1 - exponent)
        self._first = HEAD ** (1 - exponent)
        self._span = self._first - (self._rows + HEAD) ** (1 - exponent)
        self._stride = np.array([_coprime_stride(rows) for rows in cardinalities])
        self._offset = rng.integers(0, self._rows)
        self._hop = rng.integers(1, self._rows)
        self._replacements_per_sample = np.where(real < STEADY_BELOW, 0.0, 1.0 / drift_samples)

    def ids(self, uniform: NDArray[np.float64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids ``[samples, 26]`` for uniform numbers of that shape; ``samples`` numbers the rows in the stream."""
        rank = self._ranks(uniform)
        phase = rank * GOLDEN % 1.0
        generation = (samples[:, None] * self._replacements_per_sample + phase).astype(np.int64)
        # A stride coprime to the rows scatters neighbouring ranks over the table and gives each its own row.
        ids: NDArray[np.int64] = (rank * self._stride + generation * self._hop + self._offset) % self._rows
        return ids

    def _ranks(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """The power law's inverse distribution function."""
        rank: NDArray[np.int64] = ((self._first - uniform * self._span) ** self._power - HEAD).astype(np.int64)
        return np.clip(rank, 0, self._rows - 1, out=rank)


def _coprime_stride(rows: int) -> int:
    stride = max(1, round(rows * GOLDEN))
    while math.gcd(stride, rows) != 1:
        stride += 1
    return stride
