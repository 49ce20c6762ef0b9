"""ServerOrder: the rows of a step, table by table for the model, server by server for the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.cluster.placement import SERVER_SHIFT, Group, Keys

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
        self.tables = tables
        self.bounds = np.append(first_addresses.ravel(), tables << TABLE_SHIFT)
        self.to_keys = (first_keys - first_addresses).ravel()
        self.by_server = np.argsort(homes.ravel(), kind="stable")  # each server's tables in their order
        self.by_table = np.argsort(self.by_server)


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

    @cached_property
    def counts(self) -> list[int]:
        """Rows of each table."""
        found: list[int] = self._lengths.reshape(self._cells.tables, -1).sum(axis=1).tolist()
        return found

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each table's rows begin among the addresses."""
        counts = np.array(self.counts, np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def keys(self) -> Keys:
        """In the order of servers, which is ascending."""
        keys = self._addresses + np.repeat(self._cells.to_keys, self._lengths)
        cuts = self._cuts.tolist()
        pieces = [keys[cuts[cell] : cuts[cell + 1]] for cell in self._cells.by_server.tolist()]
        return np.concatenate(pieces) if pieces else keys

    def to_servers(self, values: Sequence[Tensor]) -> Tensor:
        """Of each table's values, in the order of ids: those of all, in the order of keys."""
        if values[0].is_cuda:  # two kernels, instead of a slice for each range of each table
            return torch.cat(list(values)).index_select(0, self._index.to(values[0].device, non_blocking=True))
        lengths = self._lengths.reshape(self._cells.tables, -1).tolist()
        pieces = [piece for each, row in zip(values, lengths, strict=True) for piece in each.split(row)]
        return torch.cat([pieces[cell] for cell in self._cells.by_server.tolist()])

    @cached_property
    def _index(self) -> Tensor:
        """In the order of keys: which of the addresses each one has."""
        lengths = self._lengths[self._cells.by_server]
        shifts = self._cuts[:-1][self._cells.by_server] - (np.cumsum(lengths) - lengths)
        return torch.from_numpy(np.arange(len(self._addresses)) + np.repeat(shifts, lengths))

    def to_tables(self, values: Sequence[Tensor]) -> Tensor:
        """The way back: of all servers' values together, or of each server's: table by table, in the order of ids."""
        lengths = self._lengths[self._cells.by_server].reshape(len(values), -1).tolist()
        pieces = [piece for each, row in zip(values, lengths, strict=True) for piece in each.split(row)]
        return torch.cat([pieces[at] for at in self._cells.by_table.tolist()])
