"""Rows of one table that a worker holds: which they are, which of them a step used, and how two sets are joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.cluster.train.layout import are_same_elements
from holdfast.cluster.train.occurrences import Occurrences


class Found(NamedTuple):
    """Where ids stand in a set; ``is_there`` says of each whether it does."""

    positions: Tensor
    is_there: Tensor


class Union(NamedTuple):
    """Two sets in one, and where the rows of each went."""

    ids: Tensor
    first: Tensor
    second: Tensor


class RowSet:
    """Rows, each once, ascending.

    Attributes:
        ids: On the device of the table.
    """

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self._used: Tensor | None = None
        self._all_used = False

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, ids: Tensor) -> Found:
        """Where some ids are."""
        if not len(self.ids):
            return Found(torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool))
        positions = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        return Found(positions, self.ids[positions] == ids)

    def mark_all(self) -> None:
        """A step uses every row."""
        self._all_used = True

    def mark(self, positions: Tensor) -> None:
        """A step uses these."""
        if not self._all_used:
            self._used = self.used()
            self._used[positions.reshape(-1)] = True

    def used(self) -> Tensor:
        """A mask of the rows that a step uses."""
        if self._all_used:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return torch.zeros_like(self.ids, dtype=torch.bool) if self._used is None else self._used

    @property
    def is_all_used(self) -> bool:
        """Whether that is every row, as far as it is known without looking."""
        return self._all_used

    def union(self, ids: Tensor) -> Union:
        """With other ids, each of them once and ascending."""
        together = torch.unique(torch.cat([self.ids, ids]))
        return Union(together, torch.searchsorted(together, self.ids), torch.searchsorted(together, ids))


class Positions(NamedTuple):
    """Where the rows of some ids are among those of their table, as a part of where they are among those of all."""

    together: Tensor
    start: int
    end: int
    first: int  # row of the table, among those of all

    def of_table(self) -> Tensor:
        """Among its own."""
        return self.together[self.start : self.end] - self.first


class Expected:
    """Ids that a batch is expected to bring to a table, and their positions among the rows held."""

    def __init__(self, ids: Tensor, positions: Positions, *, is_only: bool) -> None:
        self.ids = ids  # kept, so that nothing else comes to lie at its address
        self.is_only = is_only  # the rows held are just these
        self._positions = positions
        self._version = ids._version
        self._occurrences: tuple[Occurrences, int] | None = None

    @cached_property
    def positions(self) -> Tensor:
        """Of each id."""
        return self._positions.of_table()

    def matches(self, ids: Tensor) -> bool:
        """Whether these are the very same elements, and nobody has changed them."""
        return are_same_elements(ids, self.ids) and ids._version == self.ids._version == self._version

    def gather(self, occurrences: Occurrences, view: int) -> None:
        """The row of each id is there."""
        self._occurrences = (occurrences, view)

    def gathered(self, *, trained: bool) -> Tensor | None:
        """The row of each id, ``[ids, width]``, where they were gathered."""
        if self._occurrences is None:
            return None
        occurrences, view = self._occurrences
        return occurrences.rows(view, trained=trained)

    def moved(self, to: Tensor) -> Expected:
        """The same where row i of those held is now row ``to[i]`` of more."""
        positions = to[self.positions]
        other = Expected(self.ids, Positions(positions, 0, len(positions), 0), is_only=False)
        other._version = self._version
        return other


@dataclass(slots=True)
class Held:
    """The values of some rows: what a table looks up in."""

    rows: RowSet
    values: Tensor  # never a leaf
    expected: list[Expected] = field(default_factory=list)
    leaf: Tensor | None = None  # of the values, once a graph needs one

    def extended(self, ids: Tensor, values: Tensor, expected: list[Expected]) -> Held:
        """With other rows, and positions among those; rows that are held already keep their values."""
        union = self.rows.union(ids)
        joined = values.new_empty(len(union.ids), values.shape[1])
        joined[union.second] = values
        joined[union.first] = self.values
        known = [each.moved(union.first) for each in self.expected] + [each.moved(union.second) for each in expected]
        return Held(RowSet(union.ids), joined, known)
