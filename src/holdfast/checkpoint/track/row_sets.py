"""Which rows of a table changed since when: three sets, one bit per row each, on the table's device.

``live`` holds what changed since the last snapshot, ``pending`` what the snapshot under way holds, ``base`` what was
committed since the baseline. Rows leave a set only for one that is read later, or when a commit that holds them is
confirmed. So a failed, cancelled or unknown save needs no handling: its rows are still pending and go into the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.kernels import bit_sets as sets
from holdfast.types import Since


class RowSet:
    """Some rows of a table, or all of them (``whole``). Its bits are allocated with the first row and then kept."""

    __slots__ = ("_bits", "_device", "_mark", "_rows", "_used", "whole")

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._bits: Tensor | None = None
        self._mark: Callable[[Tensor], None] | None = None
        self._used = False  # whether a bit may be set
        self.whole = False

    @property
    def is_empty(self) -> bool:
        """Whether it certainly holds no row."""
        return not (self.whole or self._used)

    @property
    def bits(self) -> Tensor | None:
        """The rows' bits; None where none is set."""
        return self._bits if self._used else None

    def add(self, ids: Tensor) -> None:
        """Add rows by id."""
        if self.whole:
            return
        if self._mark is None:
            self._mark = sets.marker(self._writable(), self._rows)
        self._used = True
        self._mark(ids)

    def add_nonzero_rows(self, values: Tensor) -> None:
        """Add the rows in which ``values`` has any bit set."""
        if not self.whole:
            sets.mark_nonzero_rows(self._writable(), values)

    def add_all(self) -> None:
        """Add every row."""
        self.whole = True

    def absorb(self, other: RowSet) -> None:
        """Add the rows of another set over the same table."""
        self.whole |= other.whole
        if other.bits is not None and not self.whole:
            sets.merge(self._writable(), other.bits)

    def clear(self) -> None:
        """Remove every row."""
        self.whole = False
        if self._bits is not None and self._used:
            sets.clear(self._bits)
            self._used = False

    def _writable(self) -> Tensor:
        if self._bits is None:
            self._bits = sets.new_set(self._rows, self._device)
        self._used = True
        return self._bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touched:
    """Rows that a delta must hold. Reads the table's own sets: use it before the next begin or outcome of a save."""

    whole: bool
    device: torch.device
    sets: tuple[Tensor, ...]

    def ids(self, start: int, stop: int) -> Tensor:
        """Those in ``[start, stop)``, ascending, int64, on the table's device."""
        if self.whole:
            return torch.arange(start, stop, dtype=torch.int64, device=self.device)
        if not self.sets:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        bits, offset = self._union(start, stop)
        ids = sets.list_ids(bits, start - offset, stop - offset)
        return ids.add_(offset) if offset else ids

    def count(self, start: int, stop: int) -> int:
        """How many there are in ``[start, stop)``."""
        if self.whole:
            return stop - start
        if not self.sets:
            return 0
        bits, offset = self._union(start, stop)
        return sets.count(bits, start - offset, stop - offset)

    def _union(self, start: int, stop: int) -> tuple[Tensor, int]:
        """The sets joined over a range, and the row that its first bit stands for."""
        if len(self.sets) == 1:
            return self.sets[0], 0
        first = start // 64 * 8
        union = self.sets[0][first : sets.set_bytes(stop)].clone()
        for bits in self.sets[1:]:
            sets.merge(union, bits[first : first + union.numel()])
        return union, 8 * first


class Marks:
    """The three sets of one table."""

    __slots__ = ("_device", "base", "live", "pending")

    def __init__(self, rows: int, device: torch.device) -> None:
        self._device = device
        self.live = RowSet(rows, device)
        self.pending = RowSet(rows, device)
        self.base = RowSet(rows, device)

    def begin(self) -> None:
        """A snapshot is taken now: what is live becomes pending, beside what an earlier, unconfirmed one left."""
        if self.pending.is_empty:
            self.live, self.pending = self.pending, self.live
        else:
            self.pending.absorb(self.live)
            self.live.clear()

    def committed(self, *, full: bool) -> None:
        """The snapshot's commit is confirmed; a full one is the new baseline."""
        if full:
            self.base.clear()
        elif self.base.is_empty:
            self.base, self.pending = self.pending, self.base
        else:
            self.base.absorb(self.pending)
        self.pending.clear()

    def forget(self) -> None:
        """Mark nothing as changed."""
        for rows in (self.live, self.pending, self.base):
            rows.clear()

    def touched(self, since: Since, *, whole: bool = False) -> Touched:
        """The rows of a delta taken now: changed since the baseline, or since the last committed checkpoint.

        ``whole`` asks for all of them.
        """
        chosen = (self.pending, self.live) if since is Since.LAST else (self.base, self.pending, self.live)
        sets = tuple(rows.bits for rows in chosen if rows.bits is not None)
        return Touched(whole=whole or any(rows.whole for rows in chosen), device=self._device, sets=sets)
