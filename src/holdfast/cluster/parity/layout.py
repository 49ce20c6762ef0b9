"""The stripes of a ring, over all its groups and dense parts, in closed form: which server has what of which.

A stripe is one row wide here. Numbers of one group follow each other, line after line (see ``erasure.lines``); behind
the last group, each server's dense part counts as a stripe of one member, and its hosts keep copies instead of
parities: they mirror it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.placement import Placement
from holdfast.erasure.lines import Lines
from holdfast.erasure.ring import Ring
from holdfast.erasure.stripes import Stripes
from holdfast.kernels.records import words_of
from holdfast.types import UpdateRule

GROUP_SHIFT = 44  # of the group's number in a stripe's
BLOCK_BYTES = 1 << 20  # of lost records that are rebuilt in one go: a millisecond of a server's time
LARGE_BLOCK_BYTES = 16 << 20  # the same where speed counts and a worker's wait does not: messages cost next to nothing
_LAST_SHARE = 3  # a block has no more than one part in so many of what is left of its line
_LEAST_SHARE = 4  # but at least this part of a full block: below it, messages would cost more than the last ones' way


class Line(NamedTuple):
    """Some stripes that have the same hosts and members. Numbers count within the group."""

    group: int
    line: int
    stripes: StripeSet


class RingLayout:
    """Which server of a ring has what.

    Args:
        placement: Of the whole model.
        ring: Its servers, members and parities.
        block_stripes: How many stripes are rebuilt in one go, at most.
    """

    def __init__(self, placement: Placement, ring: Ring, *, block_stripes: int = 2048) -> None:
        self.placement = placement
        self.ring = ring
        self.lines = tuple(
            Lines(Stripes(ring, [group.size(server) for server in ring.servers])) for group in placement.groups
        )
        self._dense = len(self.lines) << GROUP_SHIFT
        self._block_stripes = block_stripes

    @property
    def none(self) -> StripeSet:
        """No stripe."""
        return StripeSet.run(0, 0)

    def owned(self, server: int) -> StripeSet:
        """All stripes that a server has a row of, and that of its dense part."""
        position = self.ring.position(server)
        runs = [
            self._run(group, line, lines.extent(position, line))
            for group, lines in enumerate(self.lines)
            for line in range(self.ring.size)
        ]
        return StripeSet.union([*runs, self.dense(server)])

    def hosted(self, server: int) -> StripeSet:
        """All stripes whose parity a server keeps, and those of the dense parts that it mirrors."""
        position = self.ring.position(server)
        hosted = [self.ring.hosted(position, parity) for parity in range(self.ring.parity)]
        runs = [
            self._run(group, line, lines.stripes.height(line))
            for group, lines in enumerate(self.lines)
            for line in hosted
        ]
        return StripeSet.union([*runs, *(self.dense(each) for each in self.mirrored(server))])

    def by_hosts(self, stripes: StripeSet) -> Mapping[tuple[int, ...], StripeSet]:
        """Stripes that share their hosts, together. No set is empty."""
        parts: dict[tuple[int, ...], list[StripeSet]] = {}
        for group, line, _ in self.split(stripes):
            parts.setdefault(self.hosts(line), []).append(self._whole(stripes, group, line))
        for server in self.dense_of(stripes):
            parts.setdefault(self.mirrors(server), []).append(self.dense(server))
        return {hosts: StripeSet.union(found) for hosts, found in parts.items()}

    def by_member(self, stripes: StripeSet) -> Mapping[int, StripeSet]:
        """By server that has a row in some of them, those. No set is empty."""
        parts: dict[int, list[StripeSet]] = {}
        for group, line, _ in self.split(stripes):
            for position in self.ring.members(line):
                run = self._run(group, line, self.lines[group].extent(position, line))
                parts.setdefault(self.ring.servers[position], []).append(stripes & run)
        for server in self.dense_of(stripes):
            parts.setdefault(server, []).append(self.dense(server))
        joined = {server: StripeSet.union(found) for server, found in parts.items()}
        return {server: found for server, found in joined.items() if found}

    def block(self, stripes: StripeSet) -> StripeSet:
        """Some of them, to be rebuilt in one go: all of one line, or a dense part.

        Of the line that most are of, so that successive blocks keep different hosts busy. The last blocks are smaller:
        what is asked for last would otherwise be under way for long when there is nothing else to do.
        """
        for server in self.dense_of(stripes):  # first: every pull and push needs it
            return self.dense(server)
        if not (lines := list(self.split(stripes))):
            return self.none
        sizes = [len(each.stripes) for each in lines]
        group, line, _ = lines[sizes.index(max(sizes))]
        least = max(1, self._block_stripes // _LEAST_SHARE)
        count = min(self._block_stripes, max(least, max(sizes) // _LAST_SHARE))
        return self._whole(stripes, group, line).first(count)

    def hosts(self, line: int) -> tuple[int, ...]:
        """The servers that keep a line's parities, by their numbers."""
        return tuple(self.ring.servers[position] for position in self.ring.hosts(line))

    def mirrors(self, server: int) -> tuple[int, ...]:
        """The servers that mirror a server's dense part: the next ones of the ring."""
        return self.hosts((self.ring.position(server) + 1) % self.ring.size)

    def mirrored(self, server: int) -> tuple[int, ...]:
        """The servers whose dense parts a server mirrors."""
        position = self.ring.position(server)
        return tuple(self.ring.servers[(position - 1 - each) % self.ring.size] for each in range(self.ring.parity))

    def dense(self, server: int) -> StripeSet:
        """The stripe of a server's dense part."""
        return StripeSet.run(self._dense + server, self._dense + server + 1)

    def dense_of(self, stripes: StripeSet) -> list[int]:
        """The servers whose dense parts are among the stripes, ascending."""
        if not stripes or stripes.highest < self._dense:
            return []
        found = stripes.within(self._dense, self._dense + (1 << GROUP_SHIFT)).numbers() - self._dense
        return [server for server in found.tolist() if server in self.ring.servers]

    def of_group(self, stripes: StripeSet, group: int) -> StripeSet:
        """The stripes of one group, numbered within it."""
        base = group << GROUP_SHIFT
        found = stripes.within(base, base + self.lines[group].size)
        return StripeSet(found.to_arrays()[0] - base) if base else found

    def split(self, stripes: StripeSet) -> Iterator[Line]:
        """Those that are no dense parts, by group and line; none of them empty."""
        for group, lines in enumerate(self.lines):
            mine = self.of_group(stripes, group)
            if mine and (only := mine.lowest // lines.rows) == mine.highest // lines.rows:
                yield Line(group, only, mine)
                continue
            for line in range(mine.lowest // max(lines.rows, 1), self.ring.size) if mine else ():
                if found := mine.within(line * lines.rows, (line + 1) * lines.rows):
                    yield Line(group, line, found)
                    if found.highest == mine.highest:
                        break

    def _run(self, group: int, line: int, count: int) -> StripeSet:
        start = (group << GROUP_SHIFT) + line * self.lines[group].rows
        return StripeSet.run(start, start + count)

    def _whole(self, stripes: StripeSet, group: int, line: int) -> StripeSet:
        start, rows = (group << GROUP_SHIFT) + line * self.lines[group].rows, self.lines[group].rows
        return stripes.within(start, start + rows)


def block_stripes(placement: Placement, rule: UpdateRule, size_bytes: int) -> int:
    """How many stripes of the widest rows make up so many bytes.

    Args:
        placement: Of the whole model.
        rule: Whose slots records hold.
        size_bytes: Of one server's records.
    """
    widest = max((words_of(rule, group.width) for group in placement.groups), default=1)
    return max(1, size_bytes // (4 * widest))
