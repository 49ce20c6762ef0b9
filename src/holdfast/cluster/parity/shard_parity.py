"""One server's rows as members of stripes, and what it keeps of others': parities of rows, mirrors of dense parts.

What is done when is the protocol's. Here are the arrays, as messages carry them and as the server keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from holdfast.cluster.parity.accumulator import Accumulator
from holdfast.cluster.parity.changes import GroupChanges
from holdfast.cluster.parity.layout import GROUP_SHIFT, RingLayout
from holdfast.cluster.parity.mirror import Mirrors, dense_size, dense_words, put_dense_words
from holdfast.cluster.parity.parity_rows import ParityRows, Share, records_at, shares
from holdfast.cluster.parity.payload import NO_WORDS, Changed, Difference, StripeRecords, Words
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays, Gradients, Numbers, WantedRows
from holdfast.cluster.shard import Shard
from holdfast.erasure.code import Code
from holdfast.kernels import galois
from holdfast.kernels.runs import Runs, joined

_NOTHING = Changed(np.empty(0, np.int64), np.empty((0, 0), np.uint32))


class Syndrome(Protocol):
    """What a host found of lost rows: the sum over them of the coefficient times the record, for each stripe."""

    @property
    def stripes(self) -> Any:
        """Which stripes."""
        ...

    @property
    def records(self) -> Any:
        """As ``Accumulator.syndrome`` gave them."""
        ...


class ShardParity:
    """Parity on one server.

    Args:
        layout: Of its ring.
        rows: What it keeps of the model.
        arrays: Memory for parities, all zeros: an array for each group, of as many rows at least. None: new memory.
        threads: That share the work on a large block.
    """

    def __init__(
        self, layout: RingLayout, rows: Shard, arrays: Sequence[Words] | None = None, *, threads: int = 1
    ) -> None:
        self.layout = layout
        self._rows = rows
        self._position = layout.ring.position(rows.server)
        self._code = Code(data=layout.ring.data, parity=layout.ring.parity)
        self._threads = threads
        self.parities = ParityRows(layout, rows.server, rows.rule, arrays, threads=threads)
        self.mirrors = Mirrors(layout, rows.server, rows.dense.rule)
        groups = zip(layout.lines, rows.groups, strict=True)
        self._changes = [GroupChanges(lines.stripes, group.record_words) for lines, group in groups]
        self._dense_pushes = 0  # that changed the dense part, and that mirrors were not told of
        self._only_push: Gradients | None = None  # where that is one

    # ---- rows ------------------------------------------------------------------------------------------------------

    def pulled(self, wanted: Arrays) -> StripeSet:
        """The stripes that a pull reads."""
        pull = WantedRows.from_arrays(wanted, len(self._rows.groups))
        return self._stripes(pull.rows, dense=pull.dense)

    def touched(self, gradients: Arrays) -> StripeSet:
        """The stripes that a push changes."""
        push = Gradients.from_arrays(gradients, len(self._rows.groups))
        return self._stripes(push.rows, dense=len(push.dense) > 0)

    def update(self, push: Gradients, without: StripeSet) -> None:
        """Apply a push, except to these stripes, and note what it changes."""
        for group in range(len(self._rows.groups)):
            self._change(group, push, without)
        if len(push.dense) and self._rows.server not in self.layout.dense_of(without):
            self._rows.dense.apply(push.dense, lr=push.lr_dense)
            self._dense_pushes += 1
            self._only_push = push if self._dense_pushes == 1 else None

    def take_changes(self) -> dict[int, Arrays]:
        """What was noted since this was last called. By host: the difference that its parities need."""
        groups, parity = len(self._rows.groups), self.layout.ring.parity
        mirrors = set(self.layout.mirrors(self._rows.server)) if self._dense_pushes else set()
        found = {host: [[_NOTHING] * parity for _ in range(groups)] for host in mirrors}
        for group, lines in enumerate(self.layout.lines):
            for member, (rows, records) in enumerate(self._changes[group].take()):
                if not len(rows):
                    continue
                for number, host in enumerate(self.layout.hosts(self.layout.ring.stripe(self._position, member))):
                    mine = found.setdefault(host, [[_NOTHING] * parity for _ in range(groups)])
                    mine[group][number] = Changed(lines.stripes.parity_rows(rows, number), records)
        dense = self._take_dense()
        return {
            host: (replace(dense, changed=changed) if host in mirrors else Difference(changed=changed)).to_arrays()
            for host, changed in found.items()
        }

    def rows_of(self, stripes: StripeSet) -> tuple[list[Numbers], bool]:
        """The rows of this server in some stripes, of each group, ascending; and whether its dense part is one."""
        found = [
            np.sort(lines.data_rows(self._position, self.layout.of_group(stripes, group).numbers()))
            for group, lines in enumerate(self.layout.lines)
        ]
        return found, self._rows.server in self.layout.dense_of(stripes)

    def give(self, stripes: StripeSet) -> Arrays:
        """Records of the rows of this server."""
        runs: list[list[Runs]] = [[] for _ in self._rows.groups]
        for share in shares(self.layout, stripes):
            runs[share.group].append(self._runs(share))
        found = [
            shard.records_of(joined(each), threads=self._threads)
            for shard, each in zip(self._rows.groups, runs, strict=True)
        ]
        is_dense = self._rows.server in self.layout.dense_of(stripes)
        dense = dense_words(self._rows.dense) if is_dense else np.empty(0, np.uint32)
        return StripeRecords(groups=found, dense=dense).to_arrays()

    def solve(self, stripes: StripeSet, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        """Take rows from the syndromes of as many hosts as rows are lost in each stripe, which may be of more stripes.

        Whose rows are lost is in ``lost``, this server among them.
        """
        given = {host: _Given(self.layout, each) for host, each in syndromes.items()}
        for share in shares(self.layout, stripes):
            records = self._solved(share, given, lost)
            self._rows.groups[share.group].put_records_of(self._runs(share), records, threads=self._threads)
        if self._rows.server in self.layout.dense_of(stripes):
            put_dense_words(self._rows.dense, next(self._given_dense(given)))

    # ---- parities and mirrors --------------------------------------------------------------------------------------

    def clear(self, stripes: StripeSet) -> None:
        """Parities as they are of rows that are all 0. A mirror is as it is until it is told what it mirrors."""
        self.parities.clear(stripes)

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """Add a server's records to parities that lack them."""
        self.add_all(stripes, {member: records})

    def add_all(self, stripes: StripeSet, records: Mapping[int, Arrays]) -> None:
        """The same for several servers at once, which takes one pass over the parities."""
        given = {
            member: StripeRecords.from_arrays(each, groups=len(self._rows.groups)) for member, each in records.items()
        }
        self.parities.add(stripes, {member: each.groups for member, each in given.items()})
        for member in self.layout.dense_of(stripes):
            self.mirrors.take(member, given[member].dense)

    def absorb(self, member: int, difference: Arrays, without: StripeSet) -> None:
        """Take a server's difference into the parities, except those of these stripes."""
        ring, groups = self.layout.ring, len(self._rows.groups)
        given = Difference.from_arrays(difference, groups=groups, parity=ring.parity)
        for group, changes in enumerate(given.changed):
            for parity, changed in enumerate(changes):
                self.parities.take(member, group, parity, self._except(group, changed, without))
        if member not in self.layout.dense_of(without):
            self._absorb_dense(member, given)

    def retold(self, member: int, difference: Arrays, host: int, without: StripeSet) -> Arrays:
        """Of a difference that a server sent here: what another host needs, of the stripes that both keep.

        Except these stripes.
        """
        ring, groups = self.layout.ring, len(self._rows.groups)
        given = Difference.from_arrays(difference, groups=groups, parity=ring.parity)
        found = [[_NOTHING] * ring.parity for _ in range(groups)]
        for group, changes in enumerate(given.changed):
            for parity, changed in enumerate(changes):
                theirs = (ring.position(host) - (self._position - parity)) % ring.size  # the same line's at that host
                kept = self._except(group, changed, without)
                if theirs < ring.parity and len(kept.rows):
                    numbers = self.parities.numbers(group, kept.rows)
                    rows = self.layout.lines[group].parity_rows(ring.position(host), numbers)
                    found[group][theirs] = Changed(rows, kept.records)
        has_mirror = host in self.layout.mirrors(member) and member not in self.layout.dense_of(without)
        return (replace(given, changed=found) if has_mirror else Difference(changed=found)).to_arrays()

    def accumulator(self, stripes: StripeSet) -> Accumulator:
        """For decoding rows of these stripes."""
        return Accumulator(self.parities, self.mirrors, stripes)

    # ---- how -------------------------------------------------------------------------------------------------------

    def _runs(self, share: Share) -> Runs:
        """The rows of this server in some stripes."""
        return self.layout.lines[share.group].data_runs(self._position, share.line, share.bounds)

    def _stripes(self, rows: Sequence[Numbers], *, dense: bool) -> StripeSet:
        parts = [
            StripeSet.of(lines.numbers(self._position, each) + (group << GROUP_SHIFT))
            for group, (lines, each) in enumerate(zip(self.layout.lines, rows, strict=True))
        ]
        return StripeSet.union([*parts, *([self.layout.dense(self._rows.server)] if dense else [])])

    def _change(self, group: int, push: Gradients, without: StripeSet) -> None:
        """Update a group's rows."""
        rows, values = push.rows[group], push.values[group]
        if without and len(rows):
            lost = self.layout.of_group(without, group).contains(self.layout.lines[group].numbers(self._position, rows))
            rows, values = rows[~lost], values[~lost]
        if len(rows):
            self._rows.groups[group].change(rows, values, lr=push.lr_tables, places=self._changes[group].places)

    def _take_dense(self) -> Difference:
        """What mirrors have to hear: the gradients of one push, which are fewer numbers; or what came of several."""
        pushes, only, self._dense_pushes, self._only_push = self._dense_pushes, self._only_push, 0, None
        if only is not None:
            return Difference(changed=(), dense=only.dense, lr_dense=only.lr_dense)
        return Difference(changed=(), dense_words=dense_words(self._rows.dense) if pushes else NO_WORDS)

    def _absorb_dense(self, member: int, given: Difference) -> None:
        if len(given.dense):
            self.mirrors.apply(member, given.dense, lr=given.lr_dense)
        elif len(given.dense_words):
            self.mirrors.take(member, given.dense_words)

    def _except(self, group: int, changed: Changed, without: StripeSet) -> Changed:
        if not without or not len(changed.rows):
            return changed
        kept = ~self.layout.of_group(without, group).contains(self.parities.numbers(group, changed.rows))
        return Changed(changed.rows[kept], changed.records[kept])

    def _given_dense(self, given: Mapping[int, _Given]) -> Iterator[Words]:
        """What hosts say of this server's dense part."""
        pieces, rule = self.layout.placement.dense, self._rows.dense.rule
        for each in given.values():
            at = 0
            for server in each.dense_servers:
                size = dense_size(pieces[server], rule)
                if server == self._rows.server:
                    yield each.records.dense[at : at + size]
                at += size

    def _solved(self, share: Share, given: Mapping[int, _Given], lost: tuple[int, ...]) -> Words:
        """The lost rows of this server: what its parities would be if the rows that are there were all 0, decoded."""
        ring = self.layout.ring
        gone = frozenset(ring.member(ring.position(server), share.line) for server in lost)
        parities = {(ring.position(host) - share.line) % ring.size: each for host, each in given.items()}
        used = sorted(parities)[: len(gone)]
        mine = ring.member(self._position, share.line)
        assert mine is not None
        coefficients = _coefficients(self._code, mine, gone, tuple(used))
        if coefficients == [1]:  # the row itself
            return parities[used[0]].of(share)
        found = np.zeros((len(share.stripes), self._rows.groups[share.group].record_words), np.uint32)
        for parity, coefficient in zip(used, coefficients, strict=True):
            galois.add(found, None, parities[parity].of(share), coefficient)
        return found


@lru_cache(maxsize=1024)  # one for each line, while rows of one server come back
def _coefficients(code: Code, member: int, gone: frozenset[int | None], parities: tuple[int, ...]) -> list[int]:
    """What a lost member is the sum of: these parities, less what is there, each times one of these."""
    present = [*(each for each in range(code.data) if each not in gone), *(code.data + each for each in parities)]
    return code.recovery([member], present)[0][-len(parities) :]


class _Given:
    """A host's syndrome, to be looked up by stripe."""

    def __init__(self, layout: RingLayout, syndrome: Syndrome) -> None:
        self.records = StripeRecords.from_arrays(syndrome.records, groups=len(layout.lines))
        self.dense_servers = layout.dense_of(syndrome.stripes)
        self._stripes = [layout.of_group(syndrome.stripes, group) for group in range(len(layout.lines))]

    def of(self, share: Share) -> Words:
        """What it says of some stripes, all of which it knows."""
        return records_at(self.records.groups[share.group], self._stripes[share.group], share.stripes)
