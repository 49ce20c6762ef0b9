"""What a host gathers while it decodes: of each stripe, the sum of the rows that are there, times their coefficients.

A member's records come on the stream of its differences, so from then on its differences belong to the sum as well, and
none that came before. So at any time, parity XOR sum is what the rows that were not added amount to: the lost ones.
"""

from __future__ import annotations

import numpy as np

from holdfast.cluster.parity.mirror import Mirrors
from holdfast.cluster.parity.parity_rows import ParityRows, records_at, shares
from holdfast.cluster.parity.payload import Difference, StripeRecords, Words
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays
from holdfast.kernels import galois
from holdfast.kernels.runs import Runs


class Accumulator:
    """Sums of the rows of some stripes, in one server's parities.

    Args:
        parities: That server's.
        mirrors: The dense parts that it mirrors, of which nothing is summed up.
        stripes: All of which it keeps a parity of.
    """

    def __init__(self, parities: ParityRows, mirrors: Mirrors, stripes: StripeSet) -> None:
        layout = parities.layout
        self._layout = layout
        self._parities = parities
        self._mirrors = mirrors
        self._stripes = [layout.of_group(stripes, group) for group in range(len(layout.lines))]
        self._sums: list[Words | None] = [None] * len(layout.lines)  # None: nothing was added
        self._unsummed: list[list[Words]] = [[] for _ in layout.lines]  # records of all stripes, added in one pass
        self._added: dict[int, StripeSet] = {}  # by server: the stripes that hold its record

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """A server's records of some of the stripes. They are given away: sums may begin with them."""
        given = StripeRecords.from_arrays(records, groups=len(self._stripes)).groups
        self._added[member] = self._added.get(member, self._layout.none) | stripes
        for share in shares(self._layout, stripes):
            coefficient = self._parities.coefficient(member, share.line)
            self._add(share.group, share.stripes, given[share.group][share.at], coefficient)

    def absorb(self, member: int, difference: Arrays) -> None:
        """A server's difference: of it, what concerns records that were added."""
        if (added := self._added.get(member)) is None:
            return
        ring, position = self._layout.ring, self._parities.position
        given = Difference.from_arrays(difference, groups=len(self._stripes), parity=ring.parity)
        for group, changes in enumerate(given.changed):
            mine = self._layout.of_group(added, group)
            for parity, (rows, records) in enumerate(changes):
                numbers = self._parities.numbers(group, rows)
                concerned = np.flatnonzero(mine.contains(numbers))
                if len(concerned):
                    at = self._stripes[group].places(numbers[concerned])
                    coefficient = self._parities.coefficient(member, ring.hosted(position, parity))
                    galois.add(self._sum(group), at, records[concerned], coefficient)

    def syndrome(self, stripes: StripeSet) -> Arrays:
        """Of some of the stripes: parity XOR sum, and copies of dense parts. Once for each: sums are given away."""
        found = []
        for group, mine in enumerate(self._stripes):
            wanted = self._layout.of_group(stripes, group)
            if wanted and wanted != mine:  # an empty part leaves the sum alone: it may have been given away
                self._sum_up(group)
            found.append(records_at(self._sum(group), mine, wanted))
        self._parities.add_to(found, stripes, self._unsummed)
        return StripeRecords(groups=found, dense=self._mirrors.give(stripes)).to_arrays()

    def _add(self, group: int, stripes: StripeSet, records: Words, coefficient: int) -> None:
        mine = self._stripes[group]
        if stripes != mine:
            runs, threads = mine.runs_of(stripes), self._parities.threads
            galois.add_runs(self._sum(group), runs, [records], coefficient, threads=threads)
        elif coefficient != 1:
            galois.add(self._sum(group), None, records, coefficient, threads=self._parities.threads)
        elif self._sums[group] is None and _is_plain(records):
            self._sums[group] = records  # most members have a row in all of the stripes: one copy less
        else:
            self._unsummed[group].append(records)  # no pass over the sum for each of them: see ``syndrome``

    def _sum(self, group: int) -> Words:
        if (found := self._sums[group]) is None:
            shape = len(self._stripes[group]), self._parities.arrays[group].shape[1]
            found = self._sums[group] = np.zeros(shape, np.uint32)
        return found

    def _sum_up(self, group: int) -> None:
        records, self._unsummed[group] = self._unsummed[group], []
        if records:
            whole = Runs.all(len(self._stripes[group]))
            galois.add_runs(self._sum(group), whole, records, threads=self._parities.threads)


def _is_plain(records: Words) -> bool:
    """Whether sums can be written to it: what comes in a message may be neither aligned nor contiguous."""
    flags = records.flags
    return flags.c_contiguous and flags.aligned and flags.writeable
