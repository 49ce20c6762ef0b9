"""The parities that one server keeps: an array of records for each group, in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.payload import Changed, Words
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Numbers
from holdfast.erasure.code import Code
from holdfast.kernels import galois, records
from holdfast.types import UpdateRule


class Share(NamedTuple):
    """Stripes of one line of a group: all have one coefficient for each member."""

    group: int
    line: int
    at: slice  # of the set's stripes of the group, in the order of their numbers
    numbers: Numbers


class ParityRows:
    """The parities of one server; all of them zero at first, as of rows that are.

    Args:
        layout: Which server has what.
        server: Whose parities they are.
        rule: Whose slots records hold.
    """

    def __init__(self, layout: RingLayout, server: int, rule: UpdateRule) -> None:
        self.layout = layout
        self.position = layout.ring.position(server)
        self.code = Code(data=layout.ring.data, parity=layout.ring.parity)
        self.arrays = [
            np.zeros((lines.stripes.size(self.position), records.words_of(rule, group.width)), np.uint32)
            for lines, group in zip(layout.lines, layout.placement.groups, strict=True)
        ]

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(array.nbytes for array in self.arrays)

    def coefficient(self, member: int, line: int) -> int:
        """By what the records of a server are multiplied in the parities of a line here."""
        ring = self.layout.ring
        number = ring.member(ring.position(member), line)
        if number is None:
            raise ValueError(f"server {member} has no row in line {line} of its ring")
        return self.code.coefficient((self.position - line) % ring.size, number)

    def clear(self, stripes: StripeSet) -> None:
        """Parities as they are of rows that are all 0."""
        for share in shares(self.layout, stripes):
            self.arrays[share.group][self._rows(share)] = 0

    def add(self, member: int, stripes: StripeSet, found: Sequence[Words]) -> None:
        """Add a server's records, an array for each group, to the parities of these stripes."""
        for share in shares(self.layout, stripes):
            coefficient = self.coefficient(member, share.line)
            galois.add(self.arrays[share.group], self._rows(share), found[share.group][share.at], coefficient)

    def take(self, member: int, group: int, parity: int, changed: Changed) -> None:
        """Bring parities up to date after a server's rows have changed."""
        line = self.layout.ring.hosted(self.position, parity)
        if len(changed.rows):
            galois.add(self.arrays[group], changed.rows, changed.records, self.coefficient(member, line))

    def give(self, stripes: StripeSet) -> list[Words]:
        """Copies of the parities of some stripes: an array for each group."""
        found = [
            self.arrays[group][lines.parity_rows(self.position, self.layout.of_group(stripes, group).numbers())]
            for group, lines in enumerate(self.layout.lines)
        ]
        return found

    def numbers(self, group: int, parity_rows: Numbers) -> Numbers:
        """The stripes of some rows of parity, numbered within the group."""
        return self.layout.lines[group].parity_numbers(self.position, parity_rows)

    def _rows(self, share: Share) -> Numbers:
        return self.layout.lines[share.group].parity_rows(self.position, share.numbers)


def shares(layout: RingLayout, stripes: StripeSet) -> Iterator[Share]:
    """A set's stripes by group and line, none of them empty."""
    before, at = -1, 0
    for group, line, found in layout.split(stripes):
        at = at if group == before else 0
        numbers = found.numbers()
        yield Share(group, line, slice(at, at + len(numbers)), numbers)
        before, at = group, at + len(numbers)


def records_at(found: Words, numbers: Numbers, wanted: Numbers) -> Words:
    """Of the records of some stripes, by ascending numbers, those of stripes among them: mostly all."""
    return found if len(wanted) == len(numbers) else found[np.searchsorted(numbers, wanted)]
