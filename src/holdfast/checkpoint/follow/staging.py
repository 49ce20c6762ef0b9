"""Reads, verifies and decodes the rows of an update, each row once, before anything is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.follow.arena import Arena
from holdfast.checkpoint.follow.keys import Keys
from holdfast.checkpoint.follow.path import TableChanges
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.crew import WORKERS, Crew
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.key_frame import require_key
from holdfast.checkpoint.restore.columns import Ids, Scratch, decode_columns, read_columns, row_ids
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.codec.base import Rows
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import IDS

_REMOTE_WORKERS = 8  # these mostly wait


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Weights of the rows ``ids`` of a table, or of those from ``first`` on."""

    table: str
    rows: Tensor
    first: int
    ids: Tensor | None

    def write(self, weights: Tensor) -> None:
        """Put them where they belong."""
        rows = self.rows.to(device=weights.device, dtype=weights.dtype)
        if self.ids is None:
            weights[self.first : self.first + len(rows)].copy_(rows)
        else:
            weights.index_copy_(0, self.ids.to(weights.device), rows)


def stage_rows(
    fetcher: Fetcher, tables: Sequence[TableChanges], arena: Arena, keys: Keys, *, workers: int | None = None
) -> list[StagedRows]:
    """The newest weights of every row in these generations, to be written in any order."""
    staging = [_Table(fetcher, changes, arena, keys) for changes in tables]
    depth = max((len(table.generations) for table in staging), default=0)
    with Crew(workers or (_REMOTE_WORKERS if fetcher.is_remote else WORKERS)) as crew:
        for age in range(depth):  # the newest first: what it holds is left out of the older ones
            crew.do(task for table in staging for task in table.tasks(age))
    return [rows for table in staging for rows in table.staged]


class _Table:
    def __init__(self, fetcher: Fetcher, changes: TableChanges, arena: Arena, keys: Keys) -> None:
        self.generations = changes.generations
        self.staged: list[StagedRows] = []
        self._fetcher = fetcher
        self._spec = changes.spec
        self._arena = arena
        self._key = keys.of(fetcher, changes.plan) if any(changes.generations) else None
        self._scratch = Scratch()
        self._adding = threading.Lock()
        # Within a generation each row stands once, so that its chunks can be read, and marked here, in any order.
        filled = sum(bool(generation) for generation in changes.generations)
        self._seen = np.zeros(changes.spec.rows, dtype=np.bool_) if filled > 1 else None

    def tasks(self, age: int) -> Iterator[partial[int]]:
        """What it takes to stage a generation; 0 is the newest."""
        if age < len(self.generations):
            yield from (partial(self._stage, read) for read in self.generations[-1 - age])

    def _stage(self, read: Read) -> int:
        self._scratch.begin()
        weight = self._spec.columns[0]
        columns = read_columns(self._fetcher, read, {IDS, weight.name}, self._scratch)
        ids = row_ids(read, columns)
        values = decode_columns(read, columns, lambda: self._baseline_rows(read, ids))
        rows = as_tensor(values[weight.name], weight.dtype, (read.rows, *weight.row_shape))
        fresh = self._fresh(read, ids)
        if fresh is None:
            staged = self._arena.empty(tuple(rows.shape), torch_dtype(weight.dtype)).copy_(rows)
        else:
            ids = np.arange(read.chunk.first, read.chunk.first + read.rows) if ids is None else ids
            chosen, ids = torch.from_numpy(np.flatnonzero(fresh)), ids[fresh]
            staged = self._arena.empty((len(chosen), *weight.row_shape), torch_dtype(weight.dtype))
            torch.index_select(rows, 0, chosen, out=staged)
        self._add(staged, read.chunk.first, ids)
        return read.size_bytes

    def _baseline_rows(self, read: Read, ids: Ids | None) -> Rows:
        key, ids = require_key(self._key, read, ids)
        return key.rows(ids)

    def _fresh(self, read: Read, ids: Ids | None) -> NDArray[np.bool_] | None:
        """Which of the rows no newer generation holds; None for all."""
        if self._seen is None:
            return None
        where = slice(read.chunk.first, read.chunk.first + read.rows) if ids is None else ids
        fresh: NDArray[np.bool_] = ~self._seen[where]
        self._seen[where] = True
        return None if fresh.all() else fresh

    def _add(self, rows: Tensor, first: int, ids: Ids | None) -> None:
        if not len(rows):
            return
        where = None if ids is None else torch.from_numpy(ids)
        with self._adding:
            self.staged.append(StagedRows(table=self._spec.name, rows=rows, first=first, ids=where))
