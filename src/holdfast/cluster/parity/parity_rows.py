"""The parities that one server keeps: an array of records for each group, in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.payload import Changed, Words
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Numbers
from holdfast.erasure.code import Code
from holdfast.kernels import galois, records
from holdfast.kernels.runs import Runs
from holdfast.types import UpdateRule

_CLEARED_ROWS = 1 << 16  # at a time: their numbers take more memory than narrow rows


class Share(NamedTuple):
    """Stripes of one line of a group: all have one coefficient for each member."""

    group: int
    line: int
    at: slice  # of the set's stripes of the group, in the order of their numbers
    stripes: StripeSet  # numbered within the group

    @property
    def bounds(self) -> Numbers:
        """Where its runs of stripes begin and end, in turns."""
        found: Numbers = self.stripes.to_arrays()[0]
        return found


class ParityRows:
    """The parities of one server; all of them zero at first, as of rows that are.

    Args:
        layout: Which server has what.
        server: Whose parities they are.
        rule: Whose slots records hold.
        arrays: Memory for them, all zeros: an array for each group, of as many rows at least. None: new memory.
        threads: That share the work on a large block.
    """

    def __init__(
        self,
        layout: RingLayout,
        server: int,
        rule: UpdateRule,
        arrays: Sequence[Words] | None = None,
        *,
        threads: int = 1,
    ) -> None:
        self.layout = layout
        self.threads = threads
        self.position = layout.ring.position(server)
        self.code = Code(data=layout.ring.data, parity=layout.ring.parity)
        shapes = parity_shapes(layout, server, rule)
        given = [np.zeros(shape, np.uint32) for shape in shapes] if arrays is None else arrays
        self.arrays = [array[:rows] for array, (rows, _) in zip(given, shapes, strict=True)]
        self._is_blank = True  # no parity was ever written

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
        if not self._is_blank:  # else each page would be taken just to write zeros
            for share in shares(self.layout, stripes):
                runs = self.runs(share)
                for part, _ in runs.shares(-(-runs.size // _CLEARED_ROWS)):
                    self.arrays[share.group][part.rows()] = 0

    def add(self, stripes: StripeSet, found: Mapping[int, Sequence[Words]]) -> None:
        """Add records to the parities of these stripes: by server, an array for each group."""
        self._is_blank = False
        for share in shares(self.layout, stripes):
            by_coefficient: dict[int, list[Words]] = {}
            for member, theirs in found.items():
                alike = by_coefficient.setdefault(self.coefficient(member, share.line), [])
                alike.append(theirs[share.group][share.at])
            array, runs = self.arrays[share.group], self.runs(share)
            for coefficient, alike in by_coefficient.items():
                galois.add_runs(array, runs, alike, coefficient, threads=self.threads)

    def take(self, member: int, group: int, parity: int, changed: Changed) -> None:
        """Bring parities up to date after a server's rows have changed."""
        line = self.layout.ring.hosted(self.position, parity)
        if len(changed.rows):
            self._is_blank = False
            galois.add(self.arrays[group], changed.rows, changed.records, self.coefficient(member, line))

    def add_to(self, found: Sequence[Words], stripes: StripeSet, more: Sequence[Sequence[Words]] = ()) -> None:
        """Add the parities of some stripes to records of them, an array for each group; and ``more`` of each."""
        for share in shares(self.layout, stripes):
            sums, array = found[share.group][share.at], self.arrays[share.group]
            beside = [each[share.at] for each in more[share.group]] if more else []
            galois.add_from(sums, array, self.runs(share), beside, threads=self.threads)

    def give(self, stripes: StripeSet) -> list[Words]:
        """Copies of the parities of some stripes: an array for each group."""
        sizes = [len(self.layout.of_group(stripes, group)) for group in range(len(self.arrays))]
        found = [np.zeros((size, array.shape[1]), np.uint32) for size, array in zip(sizes, self.arrays, strict=True)]
        self.add_to(found, stripes)
        return found

    def numbers(self, group: int, parity_rows: Numbers) -> Numbers:
        """The stripes of some rows of parity, numbered within the group."""
        return self.layout.lines[group].parity_numbers(self.position, parity_rows)

    def runs(self, share: Share) -> Runs:
        """The rows of the parities of some stripes."""
        return self.layout.lines[share.group].parity_runs(self.position, share.line, share.bounds)


def parity_shapes(layout: RingLayout, server: int, rule: UpdateRule) -> list[tuple[int, int]]:
    """Of each group: how many parities a server keeps, and how many words each has."""
    position = layout.ring.position(server)
    return [
        (lines.stripes.size(position), records.words_of(rule, group.width))
        for lines, group in zip(layout.lines, layout.placement.groups, strict=True)
    ]


def shares(layout: RingLayout, stripes: StripeSet) -> Iterator[Share]:
    """A set's stripes by group and line, none of them empty."""
    before, at = -1, 0
    for group, line, found in layout.split(stripes):
        at = at if group == before else 0
        yield Share(group, line, slice(at, at + len(found)), found)
        before, at = group, at + len(found)


def records_at(found: Words, stripes: StripeSet, wanted: StripeSet) -> Words:
    """Of the records of some stripes, by ascending numbers, those of stripes among them: mostly all."""
    return found if wanted == stripes else found[stripes.runs_of(wanted).rows()]
