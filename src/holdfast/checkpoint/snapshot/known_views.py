"""What is made of live tensors for every save, and is the same as for the last one where they are the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from holdfast.checkpoint.snapshot.gpu_records import Encodable, encodable
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of
from holdfast.codec.base import Codec


class _StateBytes(NamedTuple):
    address: int
    size: int
    raw: Tensor


class _Columns(NamedTuple):
    codecs: Mapping[str, Codec]
    addresses: list[int]
    columns: Encodable


class KnownViews:
    """Views keep the memory that they show, so an address stands for one piece of memory as long as one is kept."""

    def __init__(self) -> None:
        self._state: dict[int, _StateBytes] = {}
        self._columns: dict[int, _Columns] = {}

    def state_bytes(self, number: int, tensor: Tensor) -> Tensor:
        """State tensor number so-and-so, as bytes."""
        if not tensor.is_contiguous():
            return bytes_of(tensor)  # a copy
        address, size = tensor.data_ptr(), tensor.nbytes
        known = self._state.get(number)
        if known is None or known.address != address or known.size != size:
            known = self._state[number] = _StateBytes(address, size, bytes_of(tensor))
        return known.raw

    def columns(self, table: TableCopy) -> Encodable:
        """The columns of a table that are encoded where they are."""
        addresses = [tensor.data_ptr() for tensor in table.tensors]
        known = self._columns.get(table.index)
        if known is None or known.codecs is not table.codecs or known.addresses != addresses:
            known = self._columns[table.index] = _Columns(table.codecs, addresses, encodable(table))
        return known.columns
