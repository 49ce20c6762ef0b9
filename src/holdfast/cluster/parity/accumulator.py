"""What a host gathers while it decodes: of each stripe, the sum of the rows that are there, times their coefficients.

A member's records come on the stream of its differences, so from then on its differences belong to the sum as well, and
none that came before. So at any time, parity XOR sum is what the rows that were not added amount to: the lost ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.parity.mirror import Mirrors
from holdfast.cluster.parity.parity_rows import ParityRows, records_at, shares
from holdfast.cluster.parity.payload import Difference, StripeRecords
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays
from holdfast.kernels import galois


class Accumulator:
    """Sums of the rows of some stripes, in one server's parities.

    Args:
        parities: That server's.
        mirrors: The dense parts that it mirrors, of which nothing is summed up.
        stripes: All of which it keeps a parity of.
    """

    def __init__(self, parities: ParityRows, mirrors: Mirrors, stripes: StripeSet) -> None:
        layout = parities.layout
        self._parities = parities
        self._mirrors = mirrors
        self._numbers = [layout.of_group(stripes, group).numbers() for group in range(len(layout.lines))]
        self._sums = [
            np.zeros((len(numbers), array.shape[1]), np.uint32)
            for numbers, array in zip(self._numbers, parities.arrays, strict=True)
        ]
        self._added: dict[int, list[NDArray[np.bool_]]] = {}  # by server: the stripes that hold its record

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """A server's records of some of the stripes."""
        given = StripeRecords.from_arrays(records, groups=len(self._numbers)).groups
        added = self._added.setdefault(member, [np.zeros(len(numbers), np.bool_) for numbers in self._numbers])
        for share in shares(self._parities.layout, stripes):
            at = np.searchsorted(self._numbers[share.group], share.numbers)
            coefficient = self._parities.coefficient(member, share.line)
            galois.add(self._sums[share.group], at, given[share.group][share.at], coefficient)
            added[share.group][at] = True

    def absorb(self, member: int, difference: Arrays) -> None:
        """A server's difference: of it, what concerns records that were added."""
        if (added := self._added.get(member)) is None:
            return
        ring, position = self._parities.layout.ring, self._parities.position
        given = Difference.from_arrays(difference, groups=len(added), parity=ring.parity)
        for group, changes in enumerate(given.changed):
            for parity, (rows, records) in enumerate(changes):
                at, concerned = self._found(group, self._parities.numbers(group, rows), added[group])
                if len(at):
                    coefficient = self._parities.coefficient(member, ring.hosted(position, parity))
                    galois.add(self._sums[group], at, records[concerned], coefficient)

    def syndrome(self, stripes: StripeSet) -> Arrays:
        """Of some of the stripes: parity XOR sum, and copies of dense parts."""
        found = self._parities.give(stripes)
        for group, numbers in enumerate(self._numbers):
            found[group] ^= records_at(
                self._sums[group], numbers, self._parities.layout.of_group(stripes, group).numbers()
            )
        return StripeRecords(groups=found, dense=self._mirrors.give(stripes)).to_arrays()

    def _found(
        self, group: int, numbers: NDArray[np.int64], added: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where stripes stand here, of those that are here and hold the record; and which of the given they are."""
        mine = self._numbers[group]
        if not len(mine):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(mine, numbers), len(mine) - 1)
        concerned = np.flatnonzero((mine[at] == numbers) & added[at])
        return at[concerned], concerned
