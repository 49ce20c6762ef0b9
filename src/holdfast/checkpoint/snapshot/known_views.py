"""What is made of live tensors for every save, and is the same as for the last one where they are the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.checkpoint.snapshot.gpu_records import Encodable, encodable
from holdfast.checkpoint.snapshot.table_copy import DeviceDifference, TableCopy
from holdfast.codec.base import Codec


class _Columns(NamedTuple):
    codecs: Mapping[str, Codec]
    difference: DeviceDifference | None
    addresses: list[int]
    columns: Encodable

    def is_for(self, table: TableCopy, addresses: list[int]) -> bool:
        """Whether these are the columns of a table whose tensors lie there."""
        return self.codecs is table.codecs and self.difference is table.difference and self.addresses == addresses


class KnownViews:
    """Views keep the memory that they show, so an address stands for one piece of memory as long as one is kept."""

    def __init__(self) -> None:
        self._columns: dict[int, _Columns] = {}

    def columns(self, table: TableCopy) -> Encodable:
        """The columns of a table that are encoded where they are."""
        addresses = [tensor.data_ptr() for tensor in table.tensors]
        known = self._columns.get(table.index)
        if known is None or not known.is_for(table, addresses):
            found = encodable(table)
            known = self._columns[table.index] = _Columns(table.codecs, table.difference, addresses, found)
        return known.columns
