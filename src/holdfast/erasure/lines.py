"""Stripes of a single row each, numbered so that all servers of a ring mean the same one.

All stripes with the same number ``q`` in their cycles form a *line*. A line has the same hosts and members throughout,
so what a server has of it is one run: its rows as that member, from the first cycle on. A stripe's number is
``q · rows + place``, where ``rows`` is the length of the ring's longest line, and ``place`` counts the rows of a line.
"""

from __future__ import annotations

import numpy as np

from holdfast.erasure.stripes import Ids, Integers, Stripes
from holdfast.kernels.runs import Runs


class Lines:
    """The lines of one ring's arrays of one width.

    Args:
        stripes: Which parity rows protect which rows.
    """

    def __init__(self, stripes: Stripes) -> None:
        self.stripes = stripes
        self.ring = stripes.ring
        self.rows = max(stripes.height(line) for line in range(self.ring.size))
        self._data_cycle = self.ring.data * stripes.block_rows
        self._parity_cycle = self.ring.parity * stripes.block_rows

    @property
    def size(self) -> int:
        """No stripe has a number as high as this."""
        return self.rows * self.ring.size

    def extent(self, position: int, line: int) -> int:
        """How many stripes of a line a server has a row of: its first ones."""
        member = self.ring.member(position, line)
        return 0 if member is None else self.stripes.extent(position, member)

    def numbers(self, position: int, rows: Integers) -> Ids:
        """The stripes that rows of a server belong to."""
        lines = (position - self.ring.parity - self.stripes.members(rows)) % self.ring.size
        return lines * self.rows + self._places(rows, self._data_cycle)

    def parity_numbers(self, position: int, parity_rows: Integers) -> Ids:
        """The stripes whose parities a server keeps in these rows."""
        lines = (position - self.stripes.parities(parity_rows)) % self.ring.size
        return lines * self.rows + self._places(parity_rows, self._parity_cycle)

    def data_rows(self, position: int, numbers: Integers) -> Ids:
        """The rows of a server in stripes that it is a member of."""
        lines, places = np.divmod(numbers, max(self.rows, 1))
        members = (position - self.ring.parity - lines) % self.ring.size
        return self._rows(places, self._data_cycle, members)

    def parity_rows(self, position: int, numbers: Integers) -> Ids:
        """The rows in which a server keeps the parities of stripes."""
        lines, places = np.divmod(numbers, max(self.rows, 1))
        return self._rows(places, self._parity_cycle, (position - lines) % self.ring.size)

    def data_runs(self, position: int, line: int, bounds: Ids) -> Runs:
        """The rows of a server in runs of stripes of one line: where they begin, and where they end, in turns."""
        return self._runs(bounds - line * self.rows, self._data_cycle, position - self.ring.parity - line)

    def parity_runs(self, position: int, line: int, bounds: Ids) -> Runs:
        """The rows in which a server keeps the parities of runs of stripes of one line."""
        return self._runs(bounds - line * self.rows, self._parity_cycle, position - line)

    def cuts(self, numbers: Ids) -> list[int]:
        """Where ascending numbers fall apart: those of line ``q`` are ``numbers[cuts[q]:cuts[q + 1]]``."""
        bounds = np.searchsorted(numbers, np.arange(self.ring.size + 1) * self.rows)
        return [int(each) for each in bounds]

    def _places(self, rows: Integers, cycle: int) -> Ids:
        known = rows.astype(np.int64, copy=False)
        found: Ids = known // cycle * self.stripes.block_rows + known % self.stripes.block_rows
        return found

    def _rows(self, places: Ids, cycle: int, blocks: Ids) -> Ids:
        cycles, offsets = np.divmod(places, self.stripes.block_rows)
        found: Ids = cycles * cycle + blocks * self.stripes.block_rows + offsets
        return found

    def _runs(self, places: Ids, cycle: int, block: int) -> Runs:
        """Cut where a cycle ends: the next block of the same number lies behind those of the others."""
        size, skipped = self.stripes.block_rows, block % self.ring.size * self.stripes.block_rows
        starts, ends = places[::2], places[1::2]
        if cycle == size:
            return Runs(starts + skipped, ends - starts)
        first = starts // size
        pieces = -(-ends // size) - first
        run = np.repeat(np.arange(len(pieces)), pieces)
        cycles = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces - first, pieces)
        begin, end = np.maximum(starts[run], cycles * size), np.minimum(ends[run], (cycles + 1) * size)
        return Runs(begin + cycles * (cycle - size) + skipped, end - begin)
