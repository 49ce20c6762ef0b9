"""k members and r parities of which any k suffice: a systematic Reed-Solomon code with one or two parities.

Units are numbered: members from 0 to k - 1, then parities from k on. Parity 0 is the sum (XOR) of all members, parity 1
the sum of ``2^i`` times member ``i``, in GF(2^8). Every unit is therefore a sum of multiples of the members, and a
change of one member changes a parity by the same multiple of the change, whatever the other members hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from holdfast.erasure.field import ORDER, divide, multiply, power
from holdfast.errors import ConfigurationError
from holdfast.kernels import galois
from holdfast.kernels.galois import Words

MOST_PARITIES = 2

Row: TypeAlias = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A code over records.

    Args:
        data: k, how many members a stripe has: from 1 to 255.
        parity: r, how many parities: 1 or 2.
    """

    data: int
    parity: int

    def __post_init__(self) -> None:
        if not 1 <= self.data <= ORDER:
            raise ConfigurationError(f"a stripe has from 1 to {ORDER} members, got {self.data}")
        if not 1 <= self.parity <= MOST_PARITIES:
            raise ConfigurationError(f"a stripe has from 1 to {MOST_PARITIES} parities, got {self.parity}")

    @property
    def units(self) -> int:
        """Members and parities together."""
        return self.data + self.parity

    def coefficient(self, parity: int, member: int) -> int:
        """By what a member is multiplied in a parity."""
        return power(parity * member)

    def recovery(self, missing: Sequence[int], present: Sequence[int]) -> list[Row]:
        """How missing units follow from k present ones: for each, the coefficients of these, in their order.

        A missing unit is the sum of the present ones, each times its coefficient. So it can be summed up as they come.

        Args:
            missing: Numbers of units.
            present: Numbers of k units.
        """
        if len(set(present)) != self.data or len(present) != self.data:
            raise ConfigurationError(f"{self.data} units are needed to rebuild others, got {list(present)}")
        inverse = _inverse(self, tuple(present))
        return [_times(self.row(unit), inverse) for unit in missing]

    def row(self, unit: int) -> Row:
        """A unit as a sum of members: their coefficients."""
        if not 0 <= unit < self.units:
            raise ConfigurationError(f"units are numbered from 0 to {self.units - 1}, got {unit}")
        if unit < self.data:
            return [int(member == unit) for member in range(self.data)]
        return [self.coefficient(unit - self.data, member) for member in range(self.data)]

    def encode(self, members: Words) -> Words:
        """The parities of members: ``[k, rows, words]`` in, ``[r, rows, words]`` out."""
        if len(members) != self.data:
            raise ConfigurationError(f"a stripe has {self.data} members, got {len(members)}")
        parities = np.empty((self.parity, *members.shape[1:]), np.uint32)
        galois.encode(members.reshape(len(members), -1), parities.reshape(self.parity, -1))
        return parities

    def update(self, parities: Words, parity: int, rows: galois.Ids | None, member: int, difference: Words) -> None:
        """Bring some rows of parities up to date, after a member's records have changed.

        Args:
            parities: ``[rows, words]``, written to.
            parity: Which parity they are.
            rows: Those that the differences belong to; one that stands there twice is changed twice. None: all.
            member: Whose records have changed.
            difference: ``[rows, words]``: old XOR new.
        """
        galois.add(parities, rows, difference, self.coefficient(parity, member))

    def decode(self, units: Mapping[int, Words], missing: Sequence[int]) -> dict[int, Words]:
        """The records of missing units.

        Args:
            units: By number, at least k of them: ``[rows, words]`` each.
            missing: Numbers of units.
        """
        present = sorted(units)[: self.data]
        found = {}
        for unit, coefficients in zip(missing, self.recovery(missing, present), strict=True):
            found[unit] = np.zeros_like(units[present[0]])
            for source, coefficient in zip(present, coefficients, strict=True):
                if coefficient:
                    galois.add(found[unit], None, units[source], coefficient)
        return found


@lru_cache(maxsize=1024)  # which servers are dead decides it, for many blocks of rows
def _inverse(code: Code, present: tuple[int, ...]) -> list[Row]:
    """How members follow from the present units: by elimination. Any k rows of a code's matrix have an inverse."""
    size = code.data
    rows = [[*code.row(unit), *(int(unit == each) for each in present)] for unit in present]
    for column in range(size):
        pivot = next(number for number in range(column, size) if rows[number][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if (leading := rows[column][column]) != 1:
            rows[column] = [divide(each, leading) for each in rows[column]]
        for number in range(size):
            if number != column and rows[number][column]:
                rows[number] = _minus(rows[number], rows[number][column], rows[column])
    return [row[size:] for row in rows]


def _minus(row: Row, factor: int, other: Row) -> Row:
    return [each ^ multiply(factor, value) for each, value in zip(row, other, strict=True)]


def _times(row: Row, matrix: Sequence[Row]) -> Row:
    total = [0] * len(matrix)
    for factor, other in zip(row, matrix, strict=True):
        if factor:
            total = _minus(total, factor, other)
    return total
