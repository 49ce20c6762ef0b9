"""Which rows live where, in closed form: nothing is kept per row.

A table with n rows on S servers is cut into ranges of c = ceil(n / S) rows. Range j of table t lives on server
(j + t) mod S, so that the first rows of tables, often the hot ones, spread. All tables of one width form a group; a
server keeps one array per group, its ranges one after another in the order of tables. A row's **key** is
server · 2^44 + its row in that array: sorted keys fall apart into one slice per server. The dense parameters form one
vector, which is cut between rows of parameters into one piece per server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.plan import DenseSpec, ModelPlan
from holdfast.errors import ConfigurationError

Keys: TypeAlias = NDArray[np.int64]
Integers: TypeAlias = NDArray[np.integer[Any]]

SERVER_SHIFT = 44  # of the server's number in a key
ROW_MASK = (1 << SERVER_SHIFT) - 1


class Range(NamedTuple):
    """Rows of a table that a server keeps, from ``at`` on in its array of the group."""

    table: int  # in the plan
    first: int
    end: int
    at: int


class Rows(NamedTuple):
    """Rows of tables: ``tables`` says of each which one, by its number in the plan."""

    tables: NDArray[np.int64]
    ids: NDArray[np.int64]


class Group:
    """The tables of one width.

    Args:
        width: Values in a row.
        tables: Their numbers in the plan, ascending.
        rows: How many rows each has.
        servers: How many there are.
    """

    def __init__(self, *, width: int, tables: Sequence[int], rows: Sequence[int], servers: int) -> None:
        self.width = width
        self.tables = tuple(tables)
        self.servers = servers
        self.rows = np.array(rows, np.int64)
        self.range_rows = -(-self.rows // servers)  # of every range but the last that is not empty
        self._numbers = np.array(tables, np.int64)
        ranges = (np.arange(servers) - self._numbers[:, None]) % servers  # [table, server]: its range there
        self._firsts: Keys = np.minimum(ranges * self.range_rows[:, None], self.rows[:, None])
        self._ends = np.minimum(self._firsts + self.range_rows[:, None], self.rows[:, None])
        ends_at = np.cumsum(self._ends - self._firsts, axis=0)
        self._starts: Keys = ends_at - (self._ends - self._firsts)
        self._sizes = ends_at[-1] if len(ends_at) else np.zeros(servers, np.int64)
        if servers >> (63 - SERVER_SHIFT) or self._sizes.max(initial=0) > ROW_MASK:
            raise ConfigurationError(f"{servers} servers with {self._sizes.max()} rows each exceed what a key can hold")

    def size(self, server: int) -> int:
        """How many rows a server's array has."""
        return int(self._sizes[server])

    def ranges(self, server: int) -> list[Range]:
        """What a server's array holds, without empty ranges."""
        columns = (self._firsts[:, server], self._ends[:, server], self._starts[:, server])
        found = zip(self.tables, *(column.tolist() for column in columns), strict=True)
        return [Range(*each) for each in found if each[1] < each[2]]

    def starts(self) -> NDArray[np.int64]:
        """``[table, server]``: where a table's range begins in the server's array."""
        return self._starts

    def keys(self, member: int | Integers, ids: Integers) -> Keys:
        """Of rows of the table with this number among the group's. Ids outside a table give no meaningful key."""
        members = np.asarray(member, np.int64)
        known = ids.astype(np.int64, copy=False)
        ranges, within = np.divmod(known, np.maximum(self.range_rows[members], 1))
        servers = (ranges + self._numbers[members]) % self.servers
        keys: Keys = (servers << SERVER_SHIFT) + self._starts[members, servers] + within
        return keys

    def rows_of(self, keys: Keys) -> Rows:
        """The rows that have these keys."""
        servers, at = keys >> SERVER_SHIFT, keys & ROW_MASK
        outside = (servers < 0) | (servers >= self.servers) | (at >= self._sizes[np.clip(servers, 0, self.servers - 1)])
        if outside.any():
            raise ConfigurationError(f"no row of width {self.width} has the key {keys[outside][0]:#x}")
        # All tables' starts, server after server, ascend: the last one that is not above a row's key is its table's.
        begins = (self._starts + (np.arange(self.servers) << SERVER_SHIFT)).T.ravel()
        ends = (begins.reshape(self.servers, -1) + (self._ends - self._firsts).T).ravel()
        held = np.flatnonzero(ends > begins)
        members = held[np.searchsorted(begins[held], keys, side="right") - 1] % len(self.tables)
        return Rows(
            tables=self._numbers[members], ids=self._firsts[members, servers] + at - self._starts[members, servers]
        )

    def cuts(self, keys: Keys) -> NDArray[np.int64]:
        """Where sorted keys fall apart: those of server s are ``keys[cuts[s]:cuts[s + 1]]``."""
        return np.searchsorted(keys, np.arange(self.servers + 1) << SERVER_SHIFT)


class DensePart(NamedTuple):
    """Whole rows of one dense parameter, in a server's piece."""

    name: str
    first: int  # row of the parameter
    rows: int
    width: int
    at: int  # of its first value in the piece


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePiece:
    """What a server keeps of the dense vector: ``vector[start:end]``."""

    start: int
    end: int
    parts: tuple[DensePart, ...]

    @property
    def size(self) -> int:
        """How many values it has."""
        return self.end - self.start


class Placement:
    """Where a model's tables and dense parameters are.

    Args:
        plan: The model.
        servers: How many there are, at least 1.
    """

    def __init__(self, plan: ModelPlan, servers: int) -> None:
        if servers < 1:
            raise ConfigurationError(f"a model needs at least 1 server, got {servers}")
        self.plan = plan
        self.servers = servers
        by_width: dict[int, list[int]] = {}
        for number, table in enumerate(plan.tables):
            by_width.setdefault(table.width, []).append(number)
        self.groups = tuple(
            Group(width=width, tables=found, rows=[plan.tables[number].rows for number in found], servers=servers)
            for width, found in sorted(by_width.items())
        )

    @cached_property
    def dense(self) -> tuple[DensePiece, ...]:
        """One piece for each server, some of them empty where there are few rows."""
        return _cut(self.plan.dense, self.servers)


def _cut(dense: Sequence[DenseSpec], servers: int) -> tuple[DensePiece, ...]:
    """A piece ends with the first row that reaches its share of the whole."""
    total = sum(each.size for each in dense)
    ends = [_row_end(dense, -(-total * (server + 1) // servers)) for server in range(servers)]
    return tuple(_piece(dense, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def _row_end(dense: Sequence[DenseSpec], value: int) -> int:
    """The end of the row that holds value number ``value``, counted from 1."""
    start = 0
    for each in dense:
        if value <= start + each.size:
            return start + -(-(value - start) // max(each.width, 1)) * each.width
        start += each.size
    return start


def _piece(dense: Sequence[DenseSpec], start: int, end: int) -> DensePiece:
    parts, at = [], 0
    for each in dense:
        first, last = max(start, at), min(end, at + each.size)
        if first < last:
            rows = (last - first) // each.width
            part = DensePart(each.name, (first - at) // each.width, rows, each.width, first - start)
            parts.append(part)
        at += each.size
    return DensePiece(start=start, end=end, parts=tuple(parts))
