"""ServerOrder: the rows of a step, table by table for the model, server by server for the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.cluster.placement import Group, Keys


class ServerOrder:
    """Rows of the tables of one group.

    A table's ids ascend, so that its ranges follow one another; each range is on one server. So either order is the
    other one with whole slices moved, and no row is sorted.

    Args:
        group: Of the placement.
        ids: For each of the group's tables, ascending, on the host.
    """

    def __init__(self, group: Group, ids: Sequence[NDArray[np.int64]]) -> None:
        self._group = group
        self._ids = ids
        self.counts = [len(each) for each in ids]
        ranges = np.arange(group.servers + 1)
        cuts = [np.searchsorted(each, ranges * size) for each, size in zip(ids, group.range_rows, strict=True)]
        self._lengths = np.array([np.diff(each) for each in cuts], np.int64).reshape(len(ids), group.servers)
        servers = (np.arange(group.servers) + np.array(group.tables, np.int64)[:, None]) % group.servers
        # Slices are numbered table by table. A stable sort by server leaves each server's tables in their order.
        self._slices = np.argsort(servers.ravel(), kind="stable").tolist()

    @cached_property
    def keys(self) -> Keys:
        """In the order of servers, which is ascending."""
        members = np.repeat(np.arange(len(self.counts)), self.counts)
        keys = self._group.keys(members, np.concatenate([*self._ids, np.empty(0, np.int64)]))
        pieces = np.split(keys, np.cumsum(self._lengths.ravel())[:-1]) if len(self.counts) else [keys]
        return np.concatenate([pieces[number] for number in self._slices])

    def to_servers(self, values: Sequence[Tensor]) -> Tensor:
        """Of each table's values, in the order of ids: those of all, in the order of keys."""
        pieces = [piece for each, row in zip(values, self._lengths.tolist(), strict=True) for piece in each.split(row)]
        return torch.cat([pieces[number] for number in self._slices])

    def to_tables(self, values: Tensor) -> list[Tensor]:
        """The way back."""
        pieces = values.split(self._lengths.ravel()[self._slices].tolist())
        by_table = [pieces[at] for at in np.argsort(self._slices).tolist()]
        together = torch.cat(by_table)
        ends = list(accumulate(self.counts))
        return [together[end - count : end] for count, end in zip(self.counts, ends, strict=True)]
