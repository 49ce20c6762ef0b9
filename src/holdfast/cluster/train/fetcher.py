"""Fetcher: asks servers for the rows of a batch, each once, and hands them to tables; sends gradients the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.cluster.placement import Group, Keys, Placement
from holdfast.cluster.train.devices import to_host
from holdfast.cluster.train.distinct import Distinct
from holdfast.cluster.train.exchange import Exchange
from holdfast.cluster.train.occurrences import Occurrences
from holdfast.cluster.train.row_set import Expected, Held, Positions, RowSet
from holdfast.cluster.train.server_order import ID_MASK, TABLE_SHIFT, Cells, ServerOrder
from holdfast.cluster.train.table import Gradient, Table, outside
from holdfast.cluster.train.transfer import Transfer
from holdfast.errors import ConfigurationError

_NO_ROWS = np.empty(0, np.int64)


class TableIds(NamedTuple):
    """Ids of a table, given by its number in the plan: as they stand in a batch."""

    table: int
    ids: Tensor


class _View(NamedTuple):
    member: int  # the table's number in its group
    ids: Tensor


class _Spread(NamedTuple):
    layout: tuple[tuple[int, int], ...]  # tables, and the numbers of their ids
    bases: Tensor  # for each id the first address of its table


@dataclass(slots=True)
class _GroupRequest:
    order: ServerOrder
    ids: Sequence[Tensor]  # of each table, ascending
    expected: list[list[Expected]]
    views: Sequence[_View] = ()
    in_views: Sequence[Expected] = ()  # the same, in the order of views
    positions: Tensor | None = None  # of each id of each view, among the rows of all tables


class _Begun(NamedTuple):
    """A group's part of a request whose rows are being counted."""

    views: Sequence[_View]
    addresses: Distinct | None  # None: no table of the group is asked


class Begun(NamedTuple):
    """A request that is being made: by group."""

    groups: Sequence[_Begun]


class _Moving(NamedTuple):
    """What came from servers, on its way to the device."""

    rows: Sequence[Transfer]  # by group
    dense: Transfer | None


@dataclass(slots=True)
class Request:
    """Rows on their way."""

    number: int
    groups: list[_GroupRequest]
    moving: _Moving | None = None  # once servers have answered


@dataclass(slots=True)
class Arrived:
    """What came of a request."""

    held: list[Held]  # by table
    dense: Transfer | None


class GroupPush(NamedTuple):
    """The gradients of a step in one group."""

    keys: Keys
    gradients: Tensor


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
        self._cells = [Cells(group) for group in placement.groups]
        self._spreads: dict[int, _Spread] = {}  # by group
        self._last: list[_GroupRequest | None] = [None] * len(placement.groups)  # received

    def begin(self, wanted: Sequence[TableIds]) -> Begun:
        """Let the device of the ids find out which rows they are, each once: for all tables of a group together."""
        return Begun([self._begin_group(number, group, wanted) for number, group in enumerate(self._placement.groups)])

    def request(self, begun: Begun, *, dense: bool) -> Request:
        """Ask for these rows."""
        groups = [
            self._request_group(number, group, each)
            for number, (group, each) in enumerate(zip(self._placement.groups, begun.groups, strict=True))
        ]
        number = self._exchange.pull([each.order.keys for each in groups], dense=dense)
        return Request(number, groups)

    def expect(self, request: Request) -> None:
        """It is received soon: if it has come, let it be moved until then."""
        if request.moving is None and self._exchange.is_there(request.number):
            request.moving = self._take(request.number)

    def _take(self, number: int) -> _Moving:
        pulled = self._exchange.take(number)
        dense = None if pulled.dense is None else Transfer(pulled.dense, self._device)
        return _Moving([Transfer(each, self._device) for each in pulled.rows], dense)

    def receive(self, request: Request) -> Arrived:
        """Wait for what was asked for."""
        moving, request.moving = request.moving or self._take(request.number), None
        self._last = list(request.groups)
        held: dict[int, Held] = {}  # by table
        for group, asked, rows in zip(self._placement.groups, request.groups, moving.rows, strict=True):
            together = asked.order.to_tables(rows.tensor())
            values = together.split_with_sizes(asked.order.counts)
            for member, table in enumerate(group.tables):
                held[table] = Held(RowSet(asked.ids[member]), values[member], asked.expected[member])
            self._gather(asked, together, [(self._tables[table], held[table]) for table in group.tables])
        return Arrived([held[table] for table in range(len(self._tables))], moving.dense)

    def _gather(self, asked: _GroupRequest, rows: Tensor, tables: Sequence[tuple[Table, Held]]) -> None:
        """The row of each id, for the tables whose modules take just that."""
        views = [number for number, each in enumerate(asked.views) if tables[each.member][0].wants_gathered]
        if not views or asked.positions is None:
            return
        sizes = [each.ids.numel() for each in asked.views]
        positions = asked.positions
        if len(views) < len(sizes):
            pieces = positions.split_with_sizes(sizes)
            positions = torch.cat([pieces[number] for number in views])
        members = [asked.views[number].member for number in views]
        gathered = Occurrences(
            rows,
            positions,
            sizes=[sizes[number] for number in views],
            members=members,
            counts=asked.order.counts,
            receivers=[table.receiver(held) for table, held in tables],
        )
        for at, number in enumerate(views):
            asked.in_views[number].gather(gathered, at)

    def fetch(self, table: Table, ids: Tensor) -> Tensor:
        """Rows of one table, each once and ascending, now."""
        number = next(number for number, each in enumerate(self._tables) if each is table)
        groups = self._placement.groups
        home = next(at for at, each in enumerate(groups) if number in each.tables)
        member = groups[home].tables.index(number)
        addresses = to_host(ids) + (member << TABLE_SHIFT)
        orders = [ServerOrder(each, addresses if at == home else _NO_ROWS) for at, each in enumerate(self._cells)]
        moving = self._take(self._exchange.pull([each.keys for each in orders], dense=False))
        return orders[home].to_tables(moving.rows[home].tensor())  # no other table has any

    def gradients(self) -> list[GroupPush]:
        """Of all tables since the last step, in the order of keys."""
        return [self._group_gradients(number, group) for number, group in enumerate(self._placement.groups)]

    def _group_gradients(self, number: int, group: Group) -> GroupPush:
        found = [self._tables[table].gradient() or self._no_gradient(group.width) for table in group.tables]
        last = self._last[number]
        if last is None or any(one is not each.ids for one, each in zip(last.ids, found, strict=True)):
            addresses = [to_host(each.ids) + (member << TABLE_SHIFT) for member, each in enumerate(found)]
            order = ServerOrder(self._cells[number], np.concatenate(addresses))
        else:
            order = last.order  # of all rows of one batch, as they were pulled
        return GroupPush(order.keys, order.to_servers(_joined([each.values for each in found])))

    def _no_gradient(self, width: int) -> Gradient:
        ids = torch.empty(0, dtype=torch.int64, device=self._device)
        return Gradient(ids, torch.empty(0, width, device=self._device))

    def _begin_group(self, number: int, group: Group, wanted: Sequence[TableIds]) -> _Begun:
        members = {table: member for member, table in enumerate(group.tables)}
        views = [_View(members[each.table], each.ids) for each in wanted if each.table in members]
        if not views:
            return _Begun(views, None)
        flat = torch.cat([each.ids if each.ids.dim() == 1 else each.ids.reshape(-1) for each in views]).to(torch.int64)
        # An id below 0 or beyond all rows stays one, and does not become the address of another table's row.
        return _Begun(views, Distinct(flat.clamp(-1, ID_MASK - 1) + self._bases(number, views)))

    def _request_group(self, number: int, group: Group, begun: _Begun) -> _GroupRequest:
        if begun.addresses is None:
            ids = [torch.empty(0, dtype=torch.int64, device=self._device) for _ in group.tables]
            return _GroupRequest(ServerOrder(self._cells[number], _NO_ROWS), ids, [[] for _ in group.tables])
        unique, on_host, inverse = begun.addresses.found()
        order = ServerOrder(self._cells[number], on_host)
        if not order.is_inside:
            raise self._first_outside(group, begun.views)
        return _cut(order, unique, inverse, begun.views)

    def _bases(self, number: int, views: Sequence[_View]) -> Tensor:
        """What to add to each id. Batches of one size have the same."""
        layout = tuple((each.member, each.ids.numel()) for each in views)
        known = self._spreads.get(number)
        if known is None or known.layout != layout:
            members, sizes = zip(*layout, strict=True)
            bases = np.repeat(np.array(members, np.int64) << TABLE_SHIFT, sizes)
            known = self._spreads[number] = _Spread(layout, torch.from_numpy(bases).to(views[0].ids.device))
        return known.bases

    def _first_outside(self, group: Group, views: Sequence[_View]) -> ConfigurationError:
        outsiders = (
            outside(self._tables[group.tables[view.member]].spec, row)
            for view in views
            for row in view.ids[(view.ids < 0) | (view.ids >= int(group.rows[view.member]))].tolist()
        )
        return next(outsiders)


def _cut(order: ServerOrder, unique: Tensor, inverse: Tensor, views: Sequence[_View]) -> _GroupRequest:
    """By table."""
    expected: list[list[Expected]] = [[] for _ in order.counts]
    in_views: list[Expected] = []
    counts = Counter(each.member for each in views)
    at = 0
    for view in views:
        start, at = at, at + view.ids.numel()
        positions = Positions(inverse, start, at, order.starts[view.member])
        in_views.append(Expected(view.ids, positions, is_only=counts[view.member] == 1))
        expected[view.member].append(in_views[-1])
    ids = (unique & ID_MASK).split_with_sizes(order.counts)
    return _GroupRequest(order, ids, expected, views, in_views, inverse)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """One after another; without a copy where they are all of one tensor, in its order."""
    if len(pieces) == 1:
        return pieces[0]
    whole = pieces[0]._base
    if whole is not None and _is_cut_into(whole, pieces):
        return whole
    return torch.cat(list(pieces))


def _is_cut_into(whole: Tensor, pieces: Sequence[Tensor]) -> bool:
    *starts, end = accumulate((each.numel() for each in pieces), initial=0)
    is_whole = whole.is_contiguous() and whole.storage_offset() == 0 and whole.numel() == end
    return is_whole and all(
        each._base is whole and each.storage_offset() == start and each.is_contiguous()
        for each, start in zip(pieces, starts, strict=True)
    )


def nothing_of(table: Table, device: torch.device) -> Held:
    """No rows of a table."""
    ids = torch.empty(0, dtype=torch.int64, device=device)
    return Held(RowSet(ids), torch.empty(0, table.spec.width, device=device))
