"""A server's rows under parity: what ``LiveShard`` does, and what the protocol of parity asks for beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.cluster.core.progress import Progress
from holdfast.cluster.core.stripes import Syndrome
from holdfast.cluster.parity.accumulator import Accumulator
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays, Floats, Numbers, in_order_of_workers
from holdfast.cluster.server.average import mean
from holdfast.cluster.server.shard import LiveShard, Saves
from holdfast.cluster.shard import Shard


class ProtectedShard(LiveShard):
    """Rows whose parities other servers keep, and parities of other servers' rows.

    Args:
        rows: The server's.
        saves: Its part of the checkpoints.
        dense: The whole dense vector, as models begin.
        parity: Its rows as members of stripes, and its parities.
    """

    def __init__(self, rows: Shard, saves: Saves, dense: Floats, parity: ShardParity) -> None:
        super().__init__(rows, saves, dense)
        self._parity = parity
        self.rebuilt_rows = 0

    # ---- rows ------------------------------------------------------------------------------------------------------

    def pulled(self, rows: Arrays) -> StripeSet:
        """The stripes that a pull reads."""
        return self._parity.pulled(rows)

    def touched(self, gradients: Arrays) -> StripeSet:
        """The stripes that a push changes."""
        return self._parity.touched(gradients)

    def update(self, step: int, gradients: Mapping[int, Arrays], without: StripeSet) -> Mapping[int, Arrays]:
        """Apply as ``apply`` does, except to these stripes. By host: the difference that its parities need."""
        groups = len(self._rows.groups)
        push = mean(in_order_of_workers(gradients, groups), groups)
        differences = self._parity.update(push, without)
        self._mark(push)
        return differences

    def give(self, stripes: StripeSet) -> Arrays:
        """Records of the rows of this server."""
        return self._parity.give(stripes)

    def solve(self, stripes: StripeSet, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        """Take rows from the syndromes of as many hosts as rows are lost in each stripe."""
        self._parity.solve(stripes, syndromes, lost)
        self.rebuilt_rows += len(stripes)

    def fall_back(self, stripes: StripeSet, dense: Arrays | None) -> Mapping[int, Progress]:
        """Take the newest rows saved; rows begin anew where nothing was. The dense part is a worker's copy."""
        wanted, is_dense = self._parity.rows_of(stripes)
        found = self._saves.load_rows(wanted, dense=is_dense)
        if found is None:
            self._begin_anew(wanted, is_dense)
        if is_dense and dense is not None:
            self.take_dense(dense)
        return found or {}

    def rebuilt(self) -> None:
        """All rows are there: saves go on with them, as if every one had changed."""
        self._saves.adopt(replaces=self.replaces)

    # ---- parities --------------------------------------------------------------------------------------------------

    def clear(self, stripes: StripeSet) -> None:
        """Parities as they are of rows that are all 0."""
        self._parity.clear(stripes)

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """Add a member's records to parities that lack them."""
        self._parity.add(member, stripes, records)

    def absorb(self, member: int, difference: Arrays, without: StripeSet) -> None:
        """Take a difference into the parities, except those of these stripes."""
        self._parity.absorb(member, difference, without)

    def retold(self, member: int, difference: Arrays, host: int, without: StripeSet) -> Arrays:
        """Of a difference that a member sent here: what another host needs, of the stripes that both keep."""
        return self._parity.retold(member, difference, host, without)

    def accumulator(self, stripes: StripeSet) -> Accumulator:
        """For decoding rows of these stripes."""
        return self._parity.accumulator(stripes)

    def _begin_anew(self, wanted: Sequence[Numbers], dense: bool) -> None:
        """Nothing was ever saved: rows are as they began."""
        for group, rows in zip(self._rows.groups, wanted, strict=True):
            group.start_some(self._rows.placement.plan, rows)
        if dense:
            piece = self._rows.dense.piece
            self._rows.dense.start(self._first_dense[piece.start : piece.end])
