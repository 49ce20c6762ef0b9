"""Keys of a checkpoint go to a table with another number of rows: each is inserted anew, with its row record."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.strips import WholeTable
from holdfast.checkpoint.restore.row_lookup import lookup_rows
from holdfast.checkpoint.restore.tensors import Targets, restore_rows
from holdfast.checkpoint.training.keyed import EMPTY_KEY, KEY
from holdfast.checkpoint.training.keyed_rows import KEY_COLUMN, KeyedRows
from holdfast.errors import ModelMismatch
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import row_bytes
from holdfast.types import KEYED

_PIECE_BYTES = 32 << 20  # of rows that are read at a time


class Reinsertion:
    """The keys of a stored table, read and counted, before anything is written."""

    def __init__(self, fetcher: Fetcher, whole: WholeTable, table: KeyedRows) -> None:
        """Raises ModelMismatch if the table has fewer rows than there are keys."""
        self._fetcher = fetcher
        self._table = table
        (self._plan,) = whole.strips
        self._columns = self._read_columns()
        self._stored = torch.nonzero(self._columns[KEY_COLUMN] != EMPTY_KEY).reshape(-1)  # rows that have a key
        if len(self._stored) > table.rows:
            raise self._mismatch(f"has {table.rows:,} rows")

    def write(self, targets: Targets, *, progress: Progress | None) -> None:
        """Insert the keys, and give their new rows the weights and slots that the checkpoint holds."""
        rows = self._insert()
        for low, high in self._pieces():
            found = lookup_rows(self._fetcher, self._plan, self._stored[low:high])
            for name, target in targets.items():
                if name in found and not name.startswith(KEYED):
                    values = found[name].to(device=target.device, dtype=target.dtype)
                    target.detach().index_copy_(0, rows[low:high].to(target.device), values)
            if progress is not None:
                progress(sum(values.nbytes for values in found.values()))

    def _read_columns(self) -> Targets:
        """What the keyed table kept for every stored row."""
        kept = [column for column in self._plan.spec.columns if column.is_keyed]
        rows = self._plan.spec.rows
        columns = {each.name: torch.empty((rows, *each.row_shape), dtype=torch_dtype(each.dtype)) for each in kept}
        restore_rows(self._fetcher, [(self._plan, columns)])
        return columns

    def _insert(self) -> Tensor:
        self._table.empty()
        device = self._table.parameter.device
        columns = {name.removeprefix(KEYED): each[self._stored].to(device) for name, each in self._columns.items()}
        keys = columns.pop(KEY)
        if not len(keys):
            return torch.empty(0, dtype=torch.int64)
        try:
            rows = self._table.keyed.insert(keys, columns)
        except ValueError as error:
            raise self._mismatch(f"refuses them ({error})") from error
        return rows.to(torch.int64)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        rows = max(1, _PIECE_BYTES // max(1, row_bytes(self._plan.spec.columns)))
        for low in range(0, len(self._stored), rows):
            yield low, min(low + rows, len(self._stored))

    def _mismatch(self, why: str) -> ModelMismatch:
        return ModelMismatch(
            f"the checkpoint holds {len(self._stored):,} keys of table {self._table.name}, which now {why}; give it "
            "more rows"
        )
