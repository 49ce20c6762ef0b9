"""Fetcher: asks servers for the rows of a batch, each once, and hands them to tables; sends gradients the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.cluster.placement import SERVER_SHIFT, Group, Keys, Placement
from holdfast.cluster.train.devices import to_device, to_host
from holdfast.cluster.train.exchange import Exchange, Floats
from holdfast.cluster.train.row_set import Expected, Held, RowSet
from holdfast.cluster.train.server_order import ServerOrder
from holdfast.cluster.train.table import Gradient, Table, outside

_SHIFT = SERVER_SHIFT  # of a table's number in an address: rows are at most as many as a server may have


class TableIds(NamedTuple):
    """Ids of a table, given by its number in the plan: as they stand in a batch."""

    table: int
    ids: Tensor


@dataclass(slots=True)
class _GroupRequest:
    order: ServerOrder
    ids: list[Tensor]  # of each table, ascending
    expected: list[list[Expected]]


@dataclass(slots=True)
class Request:
    """Rows on their way."""

    number: int
    groups: list[_GroupRequest]


@dataclass(slots=True)
class Arrived:
    """What came of a request."""

    held: list[Held]  # by table
    dense: Floats | None


class GroupPush(NamedTuple):
    """The gradients of a step in one group."""

    keys: Keys
    gradients: Floats


class Fetcher:
    """Moves rows between tables and an exchange.

    Args:
        tables: In the plan's order.
        placement: Of the model.
        exchange: With the servers.
        device: Where tables hold their rows.
    """

    def __init__(self, tables: Sequence[Table], placement: Placement, exchange: Exchange, device: torch.device) -> None:
        self._tables = tables
        self._placement = placement
        self._exchange = exchange
        self._device = device

    def request(self, wanted: Sequence[TableIds], *, dense: bool) -> Request:
        """Ask for the rows of some ids: one unique for all tables of a group, on the device of the ids."""
        groups = [self._request_group(group, wanted) for group in self._placement.groups]
        number = self._exchange.pull([each.order.keys for each in groups], dense=dense)
        return Request(number, groups)

    def receive(self, request: Request) -> Arrived:
        """Wait for what was asked for."""
        pulled = self._exchange.take(request.number)
        held: list[Held] = [nothing_of(each, self._device) for each in self._tables]
        for group, asked, rows in zip(self._placement.groups, request.groups, pulled.rows, strict=True):
            values = asked.order.to_tables(to_device(rows, self._device))
            for member, table in enumerate(group.tables):
                held[table] = Held(RowSet(asked.ids[member]), values[member], asked.expected[member])
        return Arrived(held, pulled.dense)

    def fetch(self, table: Table, ids: Tensor) -> Tensor:
        """Rows of one table, each once and ascending, now."""
        number = next(number for number, each in enumerate(self._tables) if each is table)
        host, nothing = to_host(ids), np.empty(0, np.int64)
        groups = self._placement.groups
        orders = [ServerOrder(each, [host if one == number else nothing for one in each.tables]) for each in groups]
        pulled = self._exchange.take(self._exchange.pull([each.keys for each in orders], dense=False))
        home = next(at for at, each in enumerate(groups) if number in each.tables)
        return orders[home].to_tables(to_device(pulled.rows[home], self._device))[groups[home].tables.index(number)]

    def gradients(self) -> list[GroupPush]:
        """Of all tables since the last step, in the order of keys."""
        return [self._group_gradients(group) for group in self._placement.groups]

    def _group_gradients(self, group: Group) -> GroupPush:
        found = [self._tables[number].gradient() or self._no_gradient(group.width) for number in group.tables]
        order = ServerOrder(group, [to_host(each.ids) for each in found])
        return GroupPush(order.keys, to_host(order.to_servers([each.values for each in found])))

    def _no_gradient(self, width: int) -> Gradient:
        ids = torch.empty(0, dtype=torch.int64, device=self._device)
        return Gradient(ids, torch.empty(0, width, device=self._device))

    def _request_group(self, group: Group, wanted: Sequence[TableIds]) -> _GroupRequest:
        members = {table: member for member, table in enumerate(group.tables)}
        views = [(members[each.table], each.ids) for each in wanted if each.table in members]
        if not views:
            ids = [torch.empty(0, dtype=torch.int64, device=self._device) for _ in group.tables]
            return _GroupRequest(ServerOrder(group, [to_host(each) for each in ids]), ids, [[] for _ in group.tables])
        sizes = [ids.numel() for _, ids in views]
        flat = torch.cat([ids.reshape(-1).to(torch.int64) for _, ids in views])
        owners = torch.tensor([member for member, _ in views]).repeat_interleave(torch.tensor(sizes)).to(flat.device)
        self._require_inside(group, flat, owners)
        unique, inverse = torch.unique(flat + (owners << _SHIFT), return_inverse=True)
        return self._cut(group, unique, inverse, views, sizes)

    def _cut(
        self, group: Group, unique: Tensor, inverse: Tensor, views: Sequence[tuple[int, Tensor]], sizes: list[int]
    ) -> _GroupRequest:
        """By table: an address is a table's number above an id, so that each table's are together."""
        host = to_host(unique)
        firsts = np.arange(len(group.tables) + 1) << _SHIFT
        bounds = np.searchsorted(host, firsts).tolist()
        spans = list(zip(bounds, bounds[1:], firsts.tolist(), strict=False))
        ids = [unique[start:end] - first for start, end, first in spans]
        order = ServerOrder(group, [host[start:end] - first for start, end, first in spans])
        expected: list[list[Expected]] = [[] for _ in group.tables]
        counts = [sum(member == one for one, _ in views) for member in range(len(group.tables))]
        for (member, view), positions in zip(views, inverse.split(sizes), strict=True):
            is_only = counts[member] == 1
            expected[member].append(Expected(view, positions - bounds[member], is_only=is_only))
        return _GroupRequest(order, ids, expected)

    def _require_inside(self, group: Group, flat: Tensor, owners: Tensor) -> None:
        rows = torch.from_numpy(group.rows).to(flat.device)[owners]
        wrong = (flat < 0) | (flat >= rows)
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise outside(self._tables[group.tables[int(owners[first])]].spec, int(flat[first]))


def nothing_of(table: Table, device: torch.device) -> Held:
    """No rows of a table."""
    ids = torch.empty(0, dtype=torch.int64, device=device)
    return Held(RowSet(ids), torch.empty(0, table.spec.width, device=device))
