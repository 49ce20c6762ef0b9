"""A trace of updates: which rows of one table change in which interval, and what stands in every row then.

A row's numbers follow from its id and the interval that wrote it last, so a restored table is checked row by row
without a copy of what was saved.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TABLE = "table"  # its name in the runs that save it
EXPONENT = 1.05
SHARE = 0.01  # of the rows, changed in an interval
_FINITE = 0x3FFFFFFF  # bits that make a float32 below 2, never a NaN: patterns may be compared as numbers too
_ROW_FACTOR, _INTERVAL_FACTOR, _COLUMN_FACTOR = 0x1E3779B1, 0x05EBCA6B, 0x165667B1  # odd, so they lose nothing
_CHECKED_AT_ONCE = 2**19  # numbers: 2 MiB stay in a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Interval ``i`` (from 1 on) changes the rows ``changed[i - 1]``, ascending; interval 0 wrote all of them."""

    rows: int
    dim: int
    changed: NDArray[np.int64]

    @property
    def intervals(self) -> int:
        """How many intervals there are after the first save."""
        return len(self.changed)

    def save(self, path: Path) -> None:
        """Keep it for another process."""
        np.savez(path, shape=np.array([self.rows, self.dim]), changed=self.changed)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """What ``save`` kept."""
        with np.load(path) as arrays:
            rows, dim = arrays["shape"].tolist()
            return cls(rows=rows, dim=dim, changed=arrays["changed"])

    def writers(self, interval: int) -> NDArray[np.int64]:
        """Of each row, the interval that wrote it last, as of ``interval``."""
        last = np.zeros(self.rows, dtype=np.int64)
        for number, ids in enumerate(self.changed[:interval], start=1):
            last[ids] = number
        return last

    def wanted(self, interval: int, baseline: int = 0) -> NDArray[np.int64]:
        """The rows that differ between two intervals, ascending: what must be read on top of a baseline."""
        changed = np.zeros(self.rows, dtype=bool)
        changed[self.changed[baseline:interval].ravel()] = True
        return np.flatnonzero(changed)

    def values(self, ids: NDArray[np.int64], writers: NDArray[np.int64]) -> Tensor:
        """The rows ``ids`` as those intervals wrote them."""
        return torch.from_numpy(_words(ids, writers) ^ self._columns()).view(torch.float32)

    def update(self, table: Tensor, interval: int) -> Tensor:
        """Write the interval's rows into the table; their ids."""
        ids = self.changed[interval - 1]
        changed = torch.from_numpy(ids)
        table.index_copy_(0, changed, self.values(ids, np.full(len(ids), interval)))
        return changed

    def fill(self, table: Tensor, interval: int) -> None:
        """Make the whole table what it was at that interval."""
        words = _words(np.arange(self.rows), self.writers(interval))
        np.bitwise_xor(words, self._columns(), out=table.view(torch.int32).numpy())

    def move(self, table: Tensor, before: int, after: int) -> None:
        """Make a table that is as it was at one interval what it was at another."""
        writers = self.writers(after)
        ids = np.flatnonzero(writers != self.writers(before))
        table.index_copy_(0, torch.from_numpy(ids), self.values(ids, writers[ids]))

    def count_wrong(self, table: Tensor, interval: int) -> int:
        """How many rows of the table are not, bit for bit, what they were at that interval."""
        found, writers, columns = table.view(torch.int32).numpy(), self.writers(interval), self._columns()
        step = max(1, _CHECKED_AT_ONCE // self.dim)

        def count(start: int) -> int:
            stop = min(start + step, self.rows)
            differs = found[start:stop] != _words(np.arange(start, stop), writers[start:stop]) ^ columns
            return int(differs.any(axis=1).sum()) if differs.any() else 0

        with ThreadPoolExecutor() as pool:
            return sum(pool.map(count, range(0, self.rows, step)))

    def _columns(self) -> NDArray[np.int32]:
        return (np.arange(self.dim) * _COLUMN_FACTOR & _FINITE).astype(np.int32)


def _words(ids: NDArray[np.int64], writers: NDArray[np.int64]) -> NDArray[np.int32]:
    """A word per row, as a column, different for any two intervals of a row and any two rows of an interval."""
    words = ids * _ROW_FACTOR + writers * _INTERVAL_FACTOR & _FINITE
    return words.astype(np.int32)[:, None]


def zipf_trace(*, rows: int, dim: int, intervals: int, seed: int, share: float = SHARE) -> Trace:
    """Rows of zipfian popularity, scattered over the table; an interval sees ``share`` of all rows, each once.

    The interval ends when that many distinct rows were drawn. The time of a row's first draw is exponential with its
    popularity as rate, so these are the rows with the earliest times.
    """
    rng = np.random.default_rng(seed)
    count = max(1, round(share * rows))
    popularity = rng.permutation(np.arange(1, rows + 1, dtype=np.float32) ** np.float32(-EXPONENT))
    changed = np.empty((intervals, count), dtype=np.int64)
    for ids in changed:
        first_drawn = rng.standard_exponential(rows, dtype=np.float32) / popularity
        ids[:] = np.sort(np.argpartition(first_drawn, count)[:count])
    return Trace(rows=rows, dim=dim, changed=changed)
