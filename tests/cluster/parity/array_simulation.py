"""The simulated job of ``core`` with real arrays underneath: the layout, kernels and parities of ``cluster.parity``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.progress import SavedProgress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stripes import Protection, Syndrome
from holdfast.cluster.parity.accumulator import Accumulator
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.mirror import dense_words, put_dense_words
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Gradients, WantedRows
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.shard import Shard
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Constant
from tests.cluster.core.model import Applied, BrokenPromise, Part, SavedRow, Storage, saved_progress
from tests.cluster.core.parity_simulation import Code, ParitySimulation
from tests.cluster.core.striped import DENSE, StripedShard, Striping

# Of the dense part, and of every second row of a server: records have 64 bits, as the simulation's have. The other
# rows are in tables of another width, which a message carries in an array of its own.
WIDTH, OTHER_WIDTH = 2, 4
WIDTHS = (WIDTH, OTHER_WIDTH)


class ArraySimulation(ParitySimulation):
    """One schedule of asynchronous training: the undisturbed run of the other kind folds records of its own."""

    def __init__(self, seed: int, **traits: Any) -> None:
        super().__init__(seed, **{"synchronous": False, **traits})

    @cached_property
    def arrays(self) -> RingLayout:
        ring = Ring(servers=tuple(range(self.code.servers)), data=self.code.data, parity=self.code.parity)
        return RingLayout(placement(self.code), ring, block_stripes=2)

    def _first(self, server: int) -> Part:
        saved = {}
        for row in self.striping.layout.rows[server]:
            record = as_record(drawn(width_of(row), self.striping.seed, server, row))
            self.striping.ledger.logs[record] = ()
            saved[row] = SavedRow(record=record)
        return Part(saved)

    def _shard(self, index: int) -> ArrayShard:
        shard = ArrayShard(index, self.striping, self.storage[index], self.ever[index], self.arrays)
        shard.fallen = self._note_fallen
        return shard

    def _server(self, member: Member, shard: Any) -> ServerCore:
        protection = Protection(self.arrays, shard, self.together, self.soon)
        return self.cores.server(member, shard, synchronous=self.traits.synchronous, protection=protection)

    def _check_parities(self, view: View) -> None:
        servers = [self.processes[each] for each in view.members if each.role is Role.SERVER]
        shards = {each.member.index: each.shard for each in servers}
        for process in servers:
            if process.runs:
                parity, _ = process.core._protected
                process.shard.check_parities(self.arrays.hosted(process.member.index) - parity._host.lacks, shards)


class ArrayShard(StripedShard):
    """Rows of one server in arrays, and its parities of others' rows."""

    def __init__(
        self, index: int, striping: Striping, storage: Storage, ever: set[Applied], layout: RingLayout
    ) -> None:
        self._there: set[int] = set()
        self._arrays = layout
        self._held = Shard(layout.placement, index, SGD(1.0), SGD(1.0))
        self._parity = ShardParity(layout, self._held)
        super().__init__(index, striping, storage, ever, None)

    @property
    def rows(self) -> dict[int, int]:  # type: ignore[override]
        return {row: self._record(row) for row in self._there}

    @rows.setter
    def rows(self, records: Mapping[int, int]) -> None:
        self._there = set(records)
        for row, record in records.items():
            self._put(row, record)

    def _record(self, row: int) -> int:
        if row == DENSE:
            return as_record(dense_words(self._held.dense))
        group, at = place_of(row)
        return as_record(self._held.groups[group].records(np.array([at])))

    def _put(self, row: int, record: int) -> None:
        words = np.frombuffer(record.to_bytes(4 * width_of(row), "little"), np.uint32)
        if row == DENSE:
            put_dense_words(self._held.dense, words)
        else:
            group, at = place_of(row)
            self._held.groups[group].put_records(np.array([at]), words[None])

    def _stripes(self, worker: int, number: int) -> Any:
        *rows, _ = self._striping.touched(self.index, worker, number)
        places = [np.array([at for at, _ in each], np.int64) for each in self._by_group(rows)]
        return self._parity.pulled(WantedRows(rows=places, dense=True).to_arrays())

    def _by_group(self, rows: Iterable[int]) -> list[list[tuple[int, int]]]:
        """Of each array: where rows are, ascending, and which."""
        found: list[list[tuple[int, int]]] = [[] for _ in self._held.groups]
        for row in sorted(rows):
            group, at = place_of(row)
            found[group].append((at, row))
        return found

    def _rows_of(self, stripes: StripeSet) -> list[int]:
        rows, position = [], self._arrays.ring.position(self.index)
        for group, lines in enumerate(self._arrays.lines):
            places = lines.data_rows(position, self._arrays.of_group(stripes, group).numbers())
            rows += [row_at(group, at) for at in places.tolist()]
        return [*rows, *([DENSE] if self.index in self._arrays.dense_of(stripes) else [])]

    def update(self, step: int, gradients: Mapping[int, Any], without: Any) -> None:
        self._ever.update((worker, step) for worker in gradients)
        workers: dict[int, list[int]] = {}
        for worker, (_, number, *_) in gradients.items():
            for row in self._striping.touched(self.index, worker, number):
                workers.setdefault(row, []).append(worker)
        left_out = set(self._rows_of(without & self._arrays.owned(self.index)))
        before = {row: self._record(row) for row in workers.keys() - left_out}
        if lacking := before.keys() - self._there:
            raise BrokenPromise(f"server {self.index} changes rows {lacking}, which it does not have")
        values = {
            row: drawn(width_of(row), step, row, *(gradients[each] for each in mine)) for row, mine in workers.items()
        }
        rows = self._by_group(workers.keys() - {DENSE})
        push = Gradients(
            rows=[np.array([at for at, _ in each], np.int64) for each in rows],
            values=[
                np.array([values[row] for _, row in each], np.float32).reshape(-1, width)
                for each, width in zip(rows, WIDTHS, strict=False)  # a small job has the first alone
            ],
            dense=values[DENSE],
            lr_tables=1.0,
            lr_dense=1.0,
        )
        self._parity.update(push, without)
        for row, record in before.items():
            self._note(row, record, tuple((worker, step) for worker in workers[row]))

    def take_changes(self) -> Mapping[int, Any]:
        return self._parity.take_changes()

    def _note(self, row: int, before: int, pushes: tuple[Applied, ...]) -> None:
        logs = self._ledger.logs
        if twice := set(pushes) & set(logs[before]):
            raise BrokenPromise(f"server {self.index} applies {twice} twice to row {row}")
        logs[self._record(row)] = (*logs[before], *pushes)

    def give(self, stripes: Any) -> Any:
        return self._parity.give(stripes)

    def solve(self, stripes: Any, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        self._parity.solve(stripes, syndromes, lost)
        for row in self._rows_of(stripes):
            if self._record(row) not in self._ledger.logs:
                raise BrokenPromise(f"row {row} of server {self.index} is wrong")
            self._there.add(row)

    def fall_back(self, stripes: Any, dense: Any) -> SavedProgress:
        taken = []
        for row in self._rows_of(stripes):
            if row in self._there:
                raise BrokenPromise(f"row {row} of server {self.index} is there, and is taken from a save")
            saved = self._storage.rows[row]
            self._put(row, saved.record)
            self._there.add(row)
            self.fallen(self.index, row)
            taken.append(saved)
        return saved_progress(taken)

    # ---- parities --------------------------------------------------------------------------------------------------

    def clear(self, stripes: Any) -> None:
        self._parity.clear(stripes)

    def add(self, member: int, stripes: Any, records: Any) -> None:
        self._parity.add(member, stripes, records)

    def absorb(self, member: int, difference: Any, without: Any) -> None:
        self._parity.absorb(member, difference, without)

    def retold(self, member: int, difference: Any, host: int, without: Any) -> Any:
        return self._parity.retold(member, difference, host, without)

    def accumulator(self, stripes: Any) -> Accumulator:  # type: ignore[override]
        return self._parity.accumulator(stripes)

    def check_parities(self, stripes: StripeSet, shards: Mapping[int, ArrayShard]) -> None:
        """They are what their members' rows make them."""
        fresh = ShardParity(self._arrays, Shard(self._arrays.placement, self.index, SGD(1.0), SGD(1.0)))
        for member, theirs in self._arrays.by_member(stripes).items():
            fresh.add(member, theirs, shards[member].give(theirs))
        parities = zip(self._parity.parities.give(stripes), fresh.parities.give(stripes), strict=True)
        mirrors = (self._parity.mirrors.give(stripes), fresh.mirrors.give(stripes))
        if not all(np.array_equal(*pair) for pair in [*parities, mirrors]):
            raise BrokenPromise(f"server {self.index} has a wrong parity")


def placement(code: Code) -> Placement:
    """Tables of single rows, so many that each server has as many rows as the code says."""
    tables = [
        TableSpec(name=f"t{number}-{server}.weight", rows=int(number < rows), width=width_of(number), init=Constant())
        for number in range(max(code.rows))
        for server, rows in enumerate(code.rows)
    ]
    dense = (DenseSpec(name="dense", shape=(code.servers, WIDTH)),)
    return Placement(ModelPlan(tables=tuple(tables), dense=dense), code.servers)


def width_of(row: int) -> int:
    return WIDTH if row == DENSE else WIDTHS[place_of(row)[0]]


def place_of(row: int) -> tuple[int, int]:
    """In which array a row is, and where."""
    at, group = divmod(row, len(WIDTHS))
    return group, at


def row_at(group: int, at: int) -> int:
    return at * len(WIDTHS) + group


def drawn(width: int, *what: Any) -> np.ndarray:
    """Numbers that depend on these."""
    dice = [hash((number, *what)) for number in range(width)]
    return np.array([(each & 0xFFFFFF) / 0x1000000 - 0.5 for each in dice], np.float32)


def as_record(values: np.ndarray) -> int:
    return int.from_bytes(values.tobytes(), "little")
