"""Rows that are coded: a small layout of stripes, and records whose parities are real, so that a wrong row shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.core.stripes import Syndrome
from tests.cluster.core.field import divide, power, times
from tests.cluster.core.model import Applied, BrokenPromise, Log, Part, Reference, SavedRow, Storage, saved_progress

Stripes = frozenset[int]
DENSE = -1  # the row of each server that is mirrored


class Rotation:
    """Stripes of one row that rotate over all servers. Those of dense parts have names below 0."""

    none: Stripes = frozenset()

    def __init__(self, rows: tuple[int, ...], *, data: int, parity: int) -> None:
        servers = len(rows)
        self.rows: list[dict[int, int]] = [{} for _ in rows]  # by server, by row: the stripe
        self.members: dict[int, dict[int, int]] = {}  # by stripe, by server: the member's number
        self.hosts: dict[int, tuple[int, ...]] = {}
        for server, count in enumerate(rows):
            for row in range(count):
                cycle, member = divmod(row, data)
                first = (server - parity - member) % servers
                stripe = cycle * servers + first
                self.rows[server][row] = stripe
                self.members.setdefault(stripe, {})[server] = member
                self.hosts[stripe] = tuple((first + number) % servers for number in range(parity))
            stripe = -1 - server
            self.rows[server][DENSE] = stripe
            self.members[stripe] = {server: 0}
            self.hosts[stripe] = tuple((server + 1 + number) % servers for number in range(parity))
        self.row = [{stripe: row for row, stripe in each.items()} for each in self.rows]
        self.by_hosts = cache(self._by_hosts)
        self.by_member = cache(self._by_member)

    def owned(self, server: int) -> Stripes:
        return frozenset(self.row[server])

    def hosted(self, server: int) -> Stripes:
        return frozenset(stripe for stripe, hosts in self.hosts.items() if server in hosts)

    def _by_hosts(self, stripes: Stripes) -> Mapping[tuple[int, ...], Stripes]:
        found: dict[tuple[int, ...], set[int]] = {}
        for stripe in sorted(stripes):
            found.setdefault(self.hosts[stripe], set()).add(stripe)
        return {hosts: frozenset(each) for hosts, each in found.items()}

    def _by_member(self, stripes: Stripes) -> Mapping[int, Stripes]:
        found: dict[int, set[int]] = {}
        for stripe in sorted(stripes):
            for server in self.members[stripe]:
                found.setdefault(server, set()).add(stripe)
        return {server: frozenset(each) for server, each in found.items()}

    def block(self, stripes: Stripes) -> Stripes:
        if not stripes:
            return stripes
        first = min(stripes)
        return frozenset(each for each in stripes if self.hosts[each] == self.hosts[first] and each <= first + 2)


@dataclass
class Ledger:
    """Every record that any row ever had, and what had been applied to it by then."""

    logs: dict[int, Log] = field(default_factory=dict)

    def first(self, server: int, row: int) -> int:
        return self._enter(hash((server, row, 29)), ())

    def fold(self, record: int, entry: tuple[Any, ...], pushes: Log) -> int:
        return self._enter(hash((record, entry)), (*self.logs[record], *pushes))

    def _enter(self, value: int, log: Log) -> int:
        record = value % (1 << 64)
        self.logs[record] = log
        return record


@dataclass(frozen=True)
class Whole:
    """What several changes of a dense row are told as: the record that they left."""

    record: int


@dataclass(frozen=True)
class Striping:
    """What all servers of a job share."""

    layout: Rotation
    ledger: Ledger
    seed: int

    def touched(self, server: int, worker: int, number: int) -> tuple[int, ...]:
        """The rows that a push changes, the dense one always."""
        rows = len(self.layout.rows[server]) - 1
        dice = hash((self.seed, server, worker, number))
        return (*(row for row in range(rows) if (dice >> (3 * row + 5)) % 3 == 0), DENSE)

    def by_row(self, server: int, pushes: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """Of pushes by worker, those that concern a row."""
        rows: dict[int, dict[int, Any]] = {}
        for worker, push in pushes.items():
            for row in self.touched(server, worker, push[1]):
                rows.setdefault(row, {})[worker] = push
        return rows

    def folded(self, ledger: Ledger, server: int, rows: Mapping[int, int], step: int, pushes: Any) -> dict[int, int]:
        """Rows after a step."""
        changed = dict(rows)
        for row, theirs in self.by_row(server, pushes).items():
            changed[row] = ledger.fold(rows[row], *entry_of(step, theirs))
        return changed


def entry_of(step: int, pushes: Mapping[int, Any]) -> tuple[tuple[Any, ...], Log]:
    """What pushes leave in a record, and in its log."""
    return (step, *pushes.items()), tuple((worker, step) for worker in pushes)


class StripedReference(Reference):
    """Synchronous training of such rows without a network or a death: records by server and row, after each step."""

    def __init__(self, striping: Striping, first: list[dict[int, int]], workers: int, lengths: tuple[int, ...]) -> None:
        super().__init__(len(first), workers, lengths)
        self._striping = striping
        self._ledger = Ledger(dict(striping.ledger.logs))
        self._states: list[Any] = [(tuple(first), (0,) * len(lengths))]

    def values(self, step: int) -> Any:
        return super().values(step)

    def _fold(self, step: int, gradients: Mapping[int, int], places: tuple[int, ...], values: Any) -> Any:
        pushes = {worker: (worker, places[worker] + 1, each) for worker, each in gradients.items()}
        ledger, folded = self._ledger, self._striping.folded
        return tuple(folded(ledger, index, each, step, pushes) for index, each in enumerate(values))

    def _pulled(self, worker: int, place: int, values: Any) -> Any:
        touched = self._striping.touched
        return tuple(tuple(each[row] for row in touched(index, worker, place + 1)) for index, each in enumerate(values))


class StripedShard:
    """Rows of one server, and its parities of others' rows."""

    def __init__(self, index: int, striping: Striping, storage: Storage, ever: set[Applied], reference: Any) -> None:
        self.index = index
        self._layout, self._ledger, self._striping = striping.layout, striping.ledger, striping
        self._storage = storage
        self._ever = ever
        self.rows: dict[int, int] = {}  # records
        self.parities: dict[int, int] = {}  # by stripe
        self._changes: dict[int, Any] = {}  # by stripe, that hosts were not told of
        self._reference = reference  # None: asynchronous
        self.fallen: Callable[[int, int], None] = lambda server, row: None
        self.progress: Callable[[], Mapping[int, Progress]] = dict
        self.is_full = lambda: False
        self.may_save: Callable[[], bool] = lambda: True

    # ---- rows ------------------------------------------------------------------------------------------------------

    def load(self, checkpoint: int | None) -> SavedProgress:
        assert checkpoint is not None, "rows come from parities, or everyone goes back"
        self._storage.rows = dict(self._storage.checkpoints[checkpoint].rows)
        self.rows = {row: saved.record for row, saved in self._storage.rows.items()}
        return SavedProgress()

    def take_dense(self, dense: Any) -> None:
        raise BrokenPromise("a worker's copy is taken with rows that fall back, or not at all")

    def read(self, rows: Any) -> Any:
        index, worker, number = rows
        if index != self.index:
            raise BrokenPromise(f"server {self.index} is asked for rows of server {index}")
        return tuple(self.rows[row] for row in self._striping.touched(index, worker, number))

    def pulled(self, rows: Any) -> Stripes:
        return self._stripes(*rows[1:])

    def touched(self, gradients: Any) -> Stripes:
        return self._stripes(*gradients[:2])

    def _stripes(self, worker: int, number: int) -> Stripes:
        touched = self._striping.touched(self.index, worker, number)
        return frozenset(self._layout.rows[self.index][row] for row in touched)

    def apply(self, step: int, gradients: Mapping[int, Any]) -> None:
        raise BrokenPromise("a push is applied, and no parity hears of it")

    def update(self, step: int, gradients: Mapping[int, Any], without: Stripes) -> None:
        self._ever.update((worker, step) for worker in gradients)
        for row, pushes in self._striping.by_row(self.index, gradients).items():
            stripe = self._layout.rows[self.index][row]
            if stripe not in without:
                self._note_change(stripe, self._update(row, step, pushes))
        self._check(step)

    def _note_change(self, stripe: int, difference: Any) -> None:
        if stripe not in self._changes:
            self._changes[stripe] = difference
        elif stripe < 0:
            self._changes[stripe] = Whole(self.rows[DENSE])
        else:
            self._changes[stripe] ^= difference

    def take_changes(self) -> Mapping[int, Any]:
        changes, self._changes = self._changes, {}
        differences: dict[int, dict[int, Any]] = {}
        for stripe, difference in changes.items():
            for host in self._layout.hosts[stripe]:
                differences.setdefault(host, {})[stripe] = difference
        return differences

    def _update(self, row: int, step: int, gradients: Mapping[int, Any]) -> Any:
        if row not in self.rows:
            raise BrokenPromise(f"server {self.index} changes row {row}, which it does not have")
        entry, pushes = entry_of(step, gradients)
        before = self.rows[row]
        if twice := set(pushes) & set(self._ledger.logs[before]):
            raise BrokenPromise(f"server {self.index} applies {twice} twice to row {row}")
        self.rows[row] = self._ledger.fold(before, entry, pushes)
        return (entry, pushes) if row == DENSE else before ^ self.rows[row]

    def _check(self, step: int) -> None:
        if self._reference is not None:
            expected = self._reference.values(step)[self.index]
            if wrong := [row for row, record in self.rows.items() if record != expected[row]]:
                raise BrokenPromise(
                    f"rows {wrong} of server {self.index} are not what they should be after {step} steps"
                )

    def give(self, stripes: Stripes) -> Any:
        return {stripe: self.rows[self._layout.row[self.index][stripe]] for stripe in stripes}

    def solve(self, stripes: Stripes, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        for stripe in stripes:
            row = self._layout.row[self.index][stripe]
            record = self._solved(stripe, {host: each.records[stripe] for host, each in syndromes.items()}, lost)
            if record not in self._ledger.logs:
                raise BrokenPromise(f"row {row} of server {self.index} is wrong")
            self.rows[row] = record

    def _solved(self, stripe: int, syndromes: Mapping[int, int], lost: tuple[int, ...]) -> int:
        if stripe < 0:
            return next(iter(syndromes.values()))
        members, hosts = self._layout.members[stripe], self._layout.hosts[stripe]
        if len(lost) == 1:
            ((host, syndrome),) = syndromes.items()
            return divide(syndrome, power(hosts.index(host), members[self.index]))
        first, second = (syndromes[host] for host in hosts)
        (other,) = set(lost) - {self.index}
        mine, theirs = power(1, members[self.index]), power(1, members[other])
        return divide(second ^ times(theirs, first), mine ^ theirs)

    def fall_back(self, stripes: Stripes, dense: Any) -> SavedProgress:
        taken = []
        for stripe in stripes:
            row = self._layout.row[self.index][stripe]
            if row in self.rows:
                raise BrokenPromise(f"row {row} of server {self.index} is there, and is taken from a save")
            saved = self._storage.rows[row]
            self.rows[row] = saved.record
            self.fallen(self.index, row)
            taken.append(saved)
        return saved_progress(taken)

    # ---- parities --------------------------------------------------------------------------------------------------

    def clear(self, stripes: Stripes) -> None:
        self.parities.update(dict.fromkeys(stripes, 0))

    def add(self, member: int, stripes: Stripes, records: Any) -> None:
        for stripe in stripes:
            self._take(self.parities, self.index, stripe, member, records[stripe])

    def absorb(self, member: int, difference: Any, without: Stripes) -> None:
        for stripe, each in difference.items():
            if stripe not in without:
                self._take(self.parities, self.index, stripe, member, each)

    def _take(self, parities: dict[int, int], host: int, stripe: int, member: int, record: Any) -> None:
        """A record, or the difference of one; the dense part's is what was applied to it, or what it is now."""
        if isinstance(record, Whole):
            parities[stripe] = record.record
        elif isinstance(record, tuple):
            if parities[stripe] not in self._ledger.logs:
                raise BrokenPromise(f"the mirror of {member} on server {host} is wrong")
            parities[stripe] = self._ledger.fold(parities[stripe], *record)
        else:
            number = self._layout.members[stripe][member]
            coefficient = power(self._layout.hosts[stripe].index(host), number) if stripe >= 0 else 1
            parities[stripe] ^= times(coefficient, record)

    def retold(self, member: int, difference: Any, host: int, without: Stripes) -> Any:
        kept = difference.keys() - without
        return {
            stripe: each for stripe, each in difference.items() if stripe in kept and host in self._layout.hosts[stripe]
        }

    def accumulator(self, stripes: Stripes) -> _Accumulator:
        return _Accumulator(self, stripes)

    def encoded(self, stripe: int, shards: Mapping[int, StripedShard]) -> int:
        """What the parity of a stripe is to be."""
        parities = {stripe: 0}
        for member in self._layout.members[stripe]:
            shard = shards[member]
            self._take(parities, self.index, stripe, member, shard.rows[self._layout.row[member][stripe]])
        return parities[stripe]

    # ---- saves -----------------------------------------------------------------------------------------------------

    def survey(self) -> bytes:
        return b"%d" % self.index

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        if self.is_full():
            return Copied(save, "the store is full")
        self._storage.staged[save] = Part({row: self._saved(row, progress) for row in self.rows}, 0, self.progress())
        return Copied(save, report=b"%d" % self.index)

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        if self.may_save():
            self._storage.rows.update({row: self._saved(row, progress) for row in (0, DENSE)})
        return Copied(save)

    def call_off(self, save: int) -> None:
        self._storage.staged.pop(save, None)

    def _saved(self, row: int, progress: Mapping[int, Progress]) -> SavedRow:
        return SavedRow(self._ledger.logs[self.rows[row]], dict(progress), self.rows[row])


class _Accumulator:
    def __init__(self, shard: StripedShard, stripes: Stripes) -> None:
        self._shard = shard
        self._sums = dict.fromkeys(stripes, 0)

    def add(self, member: int, stripes: Stripes, records: Any) -> None:
        for stripe in stripes & self._sums.keys():
            self._shard._take(self._sums, self._shard.index, stripe, member, records[stripe])

    def absorb(self, member: int, difference: Any) -> None:
        self.add(member, frozenset(difference), difference)

    def syndrome(self, stripes: Stripes) -> Any:
        return {stripe: self._shard.parities[stripe] ^ self._sums[stripe] for stripe in stripes}
