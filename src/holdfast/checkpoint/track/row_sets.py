"""Which rows of a table changed since when: three sets, one bit per row each, on the table's device.

``live`` holds what changed since the last snapshot, ``pending`` what the snapshot under way holds, ``base`` what was
committed since the baseline. Rows leave a set only for one that is read later, or when a commit that holds them is
confirmed. So a failed, cancelled or unknown save needs no handling: its rows are still pending and go into the next.

The same for tables of torch's and for NumPy arrays, which a server of a cluster has: ``SetKind`` is what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from holdfast.kernels.bit_sets.arrays import set_bytes
from holdfast.types import Since

A = TypeVar("A")  # tensors or arrays
B = TypeVar("B", contravariant=True)


class SetKind(Protocol[A]):
    """Sets of rows, and lists of ids (int64), as tensors or arrays where the table is."""

    def new_set(self, rows: int, /) -> A:
        """An empty set."""
        ...

    def marker(self, bits: A, rows: int, /) -> Callable[[A], None]:
        """Adds ids, in any order, to a set over so many rows."""
        ...

    def mark_nonzero_rows(self, bits: A, values: A, /) -> None:
        """Add every row of ``values`` that has a bit set anywhere."""
        ...

    def merge(self, into: A, other: A, /) -> None:
        """Add the rows of another set."""
        ...

    def clear(self, bits: A, /) -> None:
        """Remove every row."""
        ...

    def cut(self, bits: A, start: int, stop: int, /) -> A:
        """A copy of some bytes of a set, as far as it has them."""
        ...

    def list_ids(self, bits: A, start: int, stop: int, /, *, offset: int = 0) -> A:
        """The rows in ``[start, stop)``, ascending; ``offset`` is added to each."""
        ...

    def count(self, bits: A, start: int, stop: int, /) -> int:
        """How many rows of ``[start, stop)`` are in the set."""
        ...

    def ids(self, start: int, stop: int, /) -> A:
        """All ids in ``[start, stop)``."""
        ...

    def size(self, ids: A, /) -> int:
        """How many ids these are."""
        ...

    def bound(self, rows: int, /) -> Bound[A] | None:
        """Bounds a set over so many rows where counting them would wait for a device; None elsewhere."""
        ...


class Bound(Protocol[B]):
    """At most how many rows a set holds."""

    @property
    def most(self) -> int:
        """No more rows than this are in the set. Never waits."""
        ...

    def grow(self, bits: B, ids: int, /) -> None:
        """So many ids, known or not, were added to the set, whose bits these are."""
        ...

    def clear(self) -> None:
        """The set was emptied."""
        ...


class RowSet(Generic[A]):
    """Some rows of a table, or all of them (``whole``). Its bits are allocated with the first row and then kept."""

    __slots__ = ("_bits", "_bound", "_kind", "_mark", "_rows", "_used", "whole")

    def __init__(self, rows: int, kind: SetKind[A]) -> None:
        self._rows = rows
        self._kind = kind
        self._bits: A | None = None
        self._mark: Callable[[A], None] | None = None
        self._bound = kind.bound(rows)
        self._used = False  # whether a bit may be set
        self.whole = False

    @property
    def most(self) -> int:
        """No more rows than this are in it; waits for no device to tell."""
        if self.whole or self._used:
            return self._rows if self.whole or self._bound is None else self._bound.most
        return 0

    @property
    def is_empty(self) -> bool:
        """Whether it certainly holds no row."""
        return not (self.whole or self._used)

    @property
    def bits(self) -> A | None:
        """The rows' bits; None where none is set."""
        return self._bits if self._used else None

    def add(self, ids: A) -> None:
        """Add rows by id."""
        if self.whole:
            return
        if self._mark is None:
            self._mark = self._kind.marker(self._writable(), self._rows)
        self._used = True
        self._mark(ids)
        if self._bound is not None:  # not counted where nobody asks: this runs for every table in every step
            self._grow(self._kind.size(ids))

    def add_nonzero_rows(self, values: A) -> None:
        """Add the rows in which ``values`` has any bit set."""
        if not self.whole:
            self._kind.mark_nonzero_rows(self._writable(), values)
            self._grow(self._rows)

    def add_all(self) -> None:
        """Add every row."""
        self.whole = True

    def absorb(self, other: RowSet[A]) -> None:
        """Add the rows of another set over the same table."""
        self.whole |= other.whole
        if other.bits is not None and not self.whole:
            self._kind.merge(self._writable(), other.bits)
            self._grow(other.most)

    def clear(self) -> None:
        """Remove every row."""
        self.whole = False
        if self._bits is not None and self._used:
            self._kind.clear(self._bits)
            self._used = False
            if self._bound is not None:
                self._bound.clear()

    def _grow(self, ids: int) -> None:
        if self._bound is not None:
            self._bound.grow(self._writable(), ids)

    def _writable(self) -> A:
        if self._bits is None:
            self._bits = self._kind.new_set(self._rows)
        self._used = True
        return self._bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touched(Generic[A]):
    """Rows that a delta must hold. Reads the table's own sets: use it before the next begin or outcome of a save."""

    whole: bool
    kind: SetKind[A]
    sets: tuple[A, ...]
    most: int  # no more rows than this, of all the table's

    def ids(self, start: int, stop: int) -> A:
        """Those in ``[start, stop)``, ascending, int64, on the table's device."""
        if self.whole:
            return self.kind.ids(start, stop)
        if not self.sets:
            return self.kind.ids(0, 0)
        bits, offset = self.union(start, stop)
        return self.kind.list_ids(bits, start - offset, stop - offset, offset=offset)

    def count(self, start: int, stop: int) -> int:
        """How many there are in ``[start, stop)``."""
        if self.whole:
            return stop - start
        if not self.sets:
            return 0
        bits, offset = self.union(start, stop)
        return self.kind.count(bits, start - offset, stop - offset)

    def union(self, start: int, stop: int) -> tuple[A, int]:
        """The sets joined over a range, and the row that its first bit stands for."""
        if len(self.sets) == 1:
            return self.sets[0], 0
        first, last = start // 64 * 8, set_bytes(stop)
        union = self.kind.cut(self.sets[0], first, last)
        for bits in self.sets[1:]:
            self.kind.merge(union, self.kind.cut(bits, first, last))
        return union, 8 * first


class Marks(Generic[A]):
    """The three sets of one table."""

    __slots__ = ("_kind", "base", "live", "pending")

    def __init__(self, rows: int, kind: SetKind[A]) -> None:
        self._kind = kind
        self.live = RowSet(rows, kind)
        self.pending = RowSet(rows, kind)
        self.base = RowSet(rows, kind)

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

    def touched(self, since: Since, *, whole: bool = False) -> Touched[A]:
        """The rows of a delta taken now: changed since the baseline, or since the last committed checkpoint.

        ``whole`` asks for all of them.
        """
        sets: list[A] = []
        most = 0
        for rows in (self.pending, self.live) if since is Since.LAST else (self.base, self.pending, self.live):
            whole = whole or rows.whole
            if (bits := rows.bits) is not None:
                sets.append(bits)
                most += rows.most
        return Touched(whole=whole, kind=self._kind, sets=tuple(sets), most=most)
