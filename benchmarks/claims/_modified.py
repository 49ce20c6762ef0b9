"""How much of a model a stream of samples modifies: its rows are what the samples look up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks.data.synthetic import ClickStream

_SAMPLES_AT_ONCE = 8192


class Modified:
    """The rows that some samples look up, over all tables."""

    def __init__(self, stream: ClickStream) -> None:
        self._stream = stream
        first_rows = np.cumsum([0, *stream.cardinalities])
        self._first_rows = first_rows[:-1]
        self._seen = np.zeros(first_rows[-1], dtype=bool)

    @property
    def share(self) -> float:
        """Their share of all rows."""
        return float(self._seen.mean())

    def add(self, start: int, stop: int) -> None:
        """Add what samples ``start`` to ``stop`` look up."""
        for first in range(start, stop, _SAMPLES_AT_ONCE):
            ids = self._stream.samples(first, min(_SAMPLES_AT_ONCE, stop - first)).ids.numpy()
            self._seen[(ids + self._first_rows).ravel()] = True


def shares_since(stream: ClickStream, start: int, stops: Sequence[int]) -> list[float]:
    """The share modified from sample ``start`` up to each of the ``stops``, which ascend."""
    modified = Modified(stream)
    shares = []
    for begin, end in pairwise((start, *stops)):
        modified.add(begin, end)
        shares.append(modified.share)
    return shares


def shares_within(stream: ClickStream, length: int, stop: int) -> list[float]:
    """The share modified within each window of ``length`` samples up to sample ``stop``."""
    return [shares_since(stream, start, [start + length])[0] for start in range(0, stop - length + 1, length)]
