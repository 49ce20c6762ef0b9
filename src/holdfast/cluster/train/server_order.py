"""ServerOrder: the rows of a step, table by table for the model, server by server for the exchange."""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.cluster.placement import SERVER_SHIFT, Group, Keys
from holdfast.cluster.train.devices import to_device

TABLE_SHIFT = SERVER_SHIFT  # of a table's number in an address
ID_MASK = (1 << TABLE_SHIFT) - 1

Addresses: TypeAlias = NDArray[np.int64]


class Cells:
    """The ranges of a group's tables, numbered table by table: what is the same for all steps.

    An **address** is the number of a table in its group, above an id: sorted ones have each table's rows together, and
    in them each range, which is on one server. So the order of keys is that of addresses with whole ranges moved, and
    within a range keys and addresses differ by a constant.
    """

    def __init__(self, group: Group) -> None:
        tables, servers = len(group.tables), group.servers
        ranges, members = np.arange(servers), np.arange(tables)
        first_ids = group.range_rows[:, None] * ranges
        first_addresses = (members[:, None] << TABLE_SHIFT) + first_ids
        homes = (ranges + np.array(group.tables, np.int64)[:, None]) % servers
        first_keys = (homes << SERVER_SHIFT) + group.starts()[members[:, None], homes]
        self.servers = servers
        self.tables = np.stack([members << TABLE_SHIFT, (members << TABLE_SHIFT) + group.rows])  # begins, ends
        self.bounds = np.append(first_addresses.ravel(), tables << TABLE_SHIFT)
        self.to_keys = (first_keys - first_addresses).ravel()
        self.by_server = np.argsort(homes.ravel(), kind="stable")  # each server's tables in their order


class ServerOrder:
    """Rows of the tables of one group.

    Args:
        cells: Of the group.
        addresses: Ascending, on the host.
    """

    def __init__(self, cells: Cells, addresses: Addresses) -> None:
        self._cells = cells
        self._addresses = addresses
        self._cuts = np.searchsorted(addresses, cells.bounds)
        self._lengths = np.diff(self._cuts)
        self._indexes: Tensor | None = None

    @cached_property
    def counts(self) -> list[int]:
        """Rows of each table."""
        found: list[int] = np.diff(self._cuts[:: self._cells.servers]).tolist()
        return found

    @cached_property
    def starts(self) -> list[int]:
        """Where each table's rows begin among the addresses."""
        found: list[int] = self._cuts[: -1 : self._cells.servers].tolist()
        return found

    @property
    def is_inside(self) -> bool:
        """Whether all addresses are of rows that tables have."""
        begins, ends = np.searchsorted(self._addresses, self._cells.tables)
        return int((ends - begins).sum()) == len(self._addresses)

    @cached_property
    def keys(self) -> Keys:
        """In the order of servers, which is ascending."""
        keys: Keys = (self._addresses + np.repeat(self._cells.to_keys, self._lengths))[self._sources]
        return keys

    def to_servers(self, values: Tensor) -> Tensor:
        """Of the values of all tables, in the order of ids: in the order of keys."""
        return values.index_select(0, self._index(values.device)[0])

    def to_tables(self, values: Tensor) -> Tensor:
        """The way back: table by table, in the order of ids."""
        return values.index_select(0, self._index(values.device)[1])

    @cached_property
    def _sources(self) -> NDArray[np.int64]:
        """In the order of keys: which of the addresses each one has."""
        lengths = self._lengths[self._cells.by_server]
        shifts = self._cuts[:-1][self._cells.by_server] - (np.cumsum(lengths) - lengths)
        sources: NDArray[np.int64] = np.arange(len(self._addresses)) + np.repeat(shifts, lengths)
        return sources

    def _index(self, device: torch.device) -> Tensor:
        """Both ways, together on a device: they are needed one after the other."""
        if self._indexes is None:
            both = np.empty((2, len(self._addresses)), np.int64)
            both[0] = self._sources
            both[1][self._sources] = np.arange(len(self._addresses))
            self._indexes = to_device(both, device)
        return self._indexes
