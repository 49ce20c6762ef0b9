"""A server's rows under parity: what ``LiveShard`` does, and what the protocol of parity asks for beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.core.stripes import Syndrome
from holdfast.cluster.parity.accumulator import Accumulator
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.parity.unadded import Unadded
from holdfast.cluster.payload import Arrays, Floats, Numbers, in_order_of_workers
from holdfast.cluster.server.average import mean
from holdfast.cluster.server.moves import Movers, Moves
from holdfast.cluster.server.shard import LiveShard, Saves
from holdfast.cluster.shard import Shard


class ProtectedShard(LiveShard):
    """Rows whose parities other servers keep, and parities of other servers' rows.

    Those that come from other servers are moved to their places while the server goes on, and everything else waits
    until they are there. Those that others ask for are read meanwhile, and what would change them waits.

    Args:
        rows: The server's.
        saves: Its part of the checkpoints.
        dense: The whole dense vector, as models begin.
        parity: Its rows as members of stripes, and its parities.
        movers: Threads that move what comes. None: it is moved before the server goes on.

    Attributes:
        row_moves: What is on its way to rows, and to the dense part.
        row_reads: What others asked for.
        parity_moves: What is on its way to parities and mirrors. Neither waits for the other.
    """

    def __init__(
        self, rows: Shard, saves: Saves, dense: Floats, parity: ShardParity, movers: Movers | None = None
    ) -> None:
        super().__init__(rows, saves, dense)
        self._parity = parity
        self._unadded = Unadded(parity.layout)
        self._movers = movers
        self.row_moves = Moves(None if movers is None else movers.of_rows)
        self.row_reads = Moves(movers.of_rows if movers is not None and movers.may_read else None)
        self.parity_moves = Moves(None if movers is None else movers.of_parities)

    def wait(self) -> None:
        """Until rows and parities are as they were told to be."""
        self._wait_to_write()
        self._wait_for_parities()

    def close(self) -> None:
        """Let what was begun end, and the threads."""
        try:
            self._add_rest()
        finally:
            if self._movers is not None:
                self._movers.close()

    # ---- what every shard does -------------------------------------------------------------------------------------

    def load(self, checkpoint: int | None) -> SavedProgress:
        """Take the rows of a checkpoint, or of the newest save of each; as they begin where nothing was saved."""
        self._wait_to_write()
        return super().load(checkpoint)

    def take_dense(self, dense: Arrays) -> None:
        """Take a worker's copy of the dense part; its slots stay as they were loaded."""
        self._wait_to_write()
        super().take_dense(dense)

    def read(self, rows: Arrays) -> Arrays:
        """Current values."""
        self.row_moves.wait()
        return super().read(rows)

    def apply(self, step: int, gradients: Mapping[int, Arrays]) -> None:
        """One optimizer step on the mean of these pushes, taken in the order of workers."""
        self._wait_to_write()
        super().apply(step, gradients)

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        """Take a snapshot of what changed, and keep with it how far each worker came."""
        self.row_moves.wait()
        return super().copy(save, progress, intent)

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        """Copy the rows that a failure would set back furthest, and keep with them what they hold."""
        self.row_moves.wait()
        return super().copy_priority(save, progress)

    # ---- rows ------------------------------------------------------------------------------------------------------

    def pulled(self, rows: Arrays) -> StripeSet:
        """The stripes that a pull reads."""
        return self._parity.pulled(rows)

    def touched(self, gradients: Arrays) -> StripeSet:
        """The stripes that a push changes."""
        return self._parity.touched(gradients)

    def update(self, step: int, gradients: Mapping[int, Arrays], without: StripeSet) -> None:
        """Apply as ``apply`` does, except to these stripes, and note what changed."""
        self._wait_to_write()
        groups = len(self._rows.groups)
        push = mean(in_order_of_workers(gradients, groups), groups)
        self._parity.update(push, without)
        self._mark(push)

    def take_changes(self) -> Mapping[int, Arrays]:
        """What was noted since this was last called. By host: the difference that its parities need."""
        return self._parity.take_changes()

    def give(self, stripes: StripeSet) -> Future[Arrays]:
        """Records of the rows of this server, as they are now."""
        self.row_moves.wait()
        return self.row_reads.find(self._parity.give, stripes)

    def solve(self, stripes: StripeSet, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        """Take rows from the syndromes of as many hosts as rows are lost in each stripe."""
        self.row_moves.begin(self._parity.solve, stripes, syndromes, lost)

    def fall_back(self, stripes: StripeSet, dense: Arrays | None) -> SavedProgress:
        """Take the newest rows saved; rows begin anew where nothing was. The dense part is a worker's copy."""
        self._wait_to_write()
        wanted, is_dense = self._parity.rows_of(stripes)
        found = self._saves.load_rows(wanted, dense=is_dense)
        if found is None:
            self._begin_anew(wanted, is_dense)
        if is_dense and dense is not None:
            self.take_dense(dense)
        return found or SavedProgress()

    def rebuilt(self) -> None:
        """All rows are there: saves go on with them, as if every one had changed."""
        self.row_moves.wait()
        self._saves.adopt(replaces=self.replaces)

    # ---- parities --------------------------------------------------------------------------------------------------

    def clear(self, stripes: StripeSet) -> None:
        """Parities as they are of rows that are all 0."""
        self._wait_for_parities()
        self._parity.clear(stripes)

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """Add a member's records to parities that lack them: with those of other members, where these come too."""
        for alike, together in self._unadded.take(member, stripes, records):
            self.parity_moves.begin(self._parity.add_all, alike, together)

    def absorb(self, member: int, difference: Arrays, without: StripeSet) -> None:
        """Take a difference into the parities, except those of these stripes."""
        self.parity_moves.follow(self._parity.absorb, member, difference, without)

    def retold(self, member: int, difference: Arrays, host: int, without: StripeSet) -> Arrays:
        """Of a difference that a member sent here: what another host needs, of the stripes that both keep."""
        return self._parity.retold(member, difference, host, without)

    def accumulator(self, stripes: StripeSet) -> Decoding:
        """For decoding rows of these stripes, whose parities lack nothing but what is on its way to them."""
        self._add_rest()
        return Decoding(self._parity.accumulator(stripes), self.parity_moves)

    def _wait_to_write(self) -> None:
        """Until all rows are there, and nobody reads them."""
        self.row_moves.wait()
        self.row_reads.wait()

    def _wait_for_parities(self) -> None:
        self._add_rest()
        self.parity_moves.wait()

    def _add_rest(self) -> None:
        for stripes, together in self._unadded.rest():
            self.parity_moves.begin(self._parity.add_all, stripes, together)

    def _begin_anew(self, wanted: Sequence[Numbers], dense: bool) -> None:
        """Nothing was ever saved: rows are as they began."""
        for group, rows in zip(self._rows.groups, wanted, strict=True):
            group.start_some(self._rows.placement.plan, rows)
        if dense:
            piece = self._rows.dense.piece
            self._rows.dense.start(self._first_dense[piece.start : piece.end])


class Decoding:
    """What a host gathers to decode rows, and what parities make of it while the server goes on.

    Args:
        accumulator: Of the same rows.
        moves: What is on its way to parities.
    """

    def __init__(self, accumulator: Accumulator, moves: Moves) -> None:
        self._accumulator = accumulator
        self._moves = moves

    def add(self, member: int, stripes: StripeSet, records: Arrays) -> None:
        """A server's records of some of the stripes. They are given away."""
        self._accumulator.add(member, stripes, records)

    def absorb(self, member: int, difference: Arrays) -> None:
        """A server's difference: of it, what concerns records that were added."""
        self._accumulator.absorb(member, difference)

    def syndrome(self, stripes: StripeSet) -> Future[Arrays]:
        """Of some of the stripes, whose parities hold all differences so far, and none that comes later.

        Nothing is added from now on: what is found out soon is what could be found out now.
        """
        return self._moves.find(self._accumulator.syndrome, stripes)
