"""Rows of a baseline as records on their device, for rows that are to be stored as differences from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.kernels import quantize
from holdfast.kernels.bit_sets import tensors as sets
from holdfast.kernels.quantize.scheme import Method, Scheme, record_bytes

_NUMBER = slice(2, 6)  # of an escaped record, where nothing stands in storage: which of the escapes it is


class BaselineRows(NamedTuple):
    """Records, in 8 bits, of a table's rows from ``first`` on, and the rows that no record holds.

    Behind the last record there is room for one that nobody reads.
    """

    records: Tensor
    escapes: Tensor  # float32
    scheme: Scheme
    first: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.records) - 1

    def decoded(self, ids: Tensor) -> Tensor:
        """Rows by their ids, as a restore would give them back; for rows in host memory."""
        records = self.records[ids - self.first]
        rows = torch.from_numpy(quantize.decode(records.numpy(), self.scheme, self.escapes.shape[1]))
        escaped = (records[:, 0] == 0xFF) & (records[:, 1] == 0xFF)
        numbers = records[escaped, _NUMBER].contiguous().view(torch.int32).view(-1)
        rows[escaped] = self.escapes[numbers.to(torch.int64)]
        return rows


def can_be_baseline(scheme: Scheme) -> bool:
    """Whether differences from such records can be made on a device."""
    return scheme.bits == 8 and scheme.method in (Method.ASYMMETRIC, Method.SYMMETRIC)


def baseline_bytes(scheme: Scheme, dim: int, rows: int, escapes: int) -> tuple[int, int]:
    """Memory for the records of so many rows, and for so many that no record holds."""
    return (rows + 1) * record_bytes(scheme, dim), escapes * dim * 4


def note_escapes(base: BaselineRows, table: Tensor, escaped: Tensor) -> Tensor:
    """Keep rows of a table whose records, ``escaped`` says which, hold nothing; how many there are, on the device.

    ``table`` begins with the first row. If there are more than there is room for, the baseline is of no use.
    """
    room = len(base.escapes)
    bits = sets.new_set(base.rows, table.device)
    sets.mark_nonzero_rows(bits, escaped.view(-1, 1))
    places, found = sets.list_bounded(bits, 0, base.rows, bound=room, fill=base.rows)
    numbers = torch.arange(room, dtype=torch.int32, device=table.device)
    base.records[:, _NUMBER].index_copy_(0, places, numbers.view(-1, 1).view(torch.uint8))
    torch.index_select(table, 0, places.clamp(max=base.rows - 1), out=base.escapes)
    return found
