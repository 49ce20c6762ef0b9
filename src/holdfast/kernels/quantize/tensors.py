"""Rows of tensors in, records out, made on the device that holds the rows."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.kernels import quantize
from holdfast.kernels.devices import triton_works
from holdfast.kernels.quantize.baseline import BaselineRows, note_escapes
from holdfast.kernels.quantize.scheme import ESCAPED, Scheme

_MARK = ESCAPED & 0xFF  # both bytes of the field that says so


def is_cheap(table: Tensor, scheme: Scheme) -> bool:
    """Whether records of rows are made faster than the rows are copied to the host: on a GPU, where Triton is."""
    if not table.is_cuda or not is_plain(table):
        return False
    return triton_works() and bool(_kernels().can_encode(scheme, table.shape[1]))


def is_plain(table: Tensor) -> bool:
    """Whether ``encode`` takes the tensor."""
    return table.dtype == torch.float32 and table.dim() == 2 and table.is_contiguous()


def encode(
    table: Tensor,
    scheme: Scheme,
    ids: Tensor | None = None,
    out: Tensor | None = None,
    *,
    base: BaselineRows | None = None,
) -> Tensor:
    """Records of the rows ``ids`` of a contiguous float32 table, or of all its rows; escaped ones are empty.

    With ``base`` and ids, of the differences from those rows. On a GPU only queued; ids are not checked there.
    """
    if table.is_cpu:
        rows = table if ids is None else table.index_select(0, ids)
        if base is not None:
            assert ids is not None
            rows = rows.detach() - base.decoded(ids)
        records = torch.from_numpy(quantize.encode(rows.detach().numpy(), scheme).records)
        return records if out is None else out.copy_(records)
    found: Tensor = _kernels().encode(table.detach(), scheme, ids, out, base=base)
    return found


def encode_bounded(
    table: Tensor,
    scheme: Scheme,
    ids: Tensor | None,
    out: Tensor,
    *,
    total: Tensor | None,
    escaped: Tensor,
    base: BaselineRows | None = None,
) -> None:
    """``encode`` on a GPU, of the first ``total`` of ``ids``; escaped rows are added to a set, by their numbers."""
    _kernels().encode(table, scheme, ids, out, total=total, escaped=escaped, base=base)


def keep_baseline(table: Tensor, base: BaselineRows) -> Tensor:
    """Make a baseline of a table, whose first row is the first one there; how many escapes it has, on the device."""
    records = base.records[: base.rows]
    encode(table, base.scheme, None, records)
    return note_escapes(base, table.detach(), escape_flags(records))


def warm_up(table: Tensor, scheme: Scheme, base: BaselineRows | None = None) -> None:
    """Compile or load what ``encode`` needs for such a table now, so that no save waits for it.

    With ``base``, for differences from it.
    """
    if not len(table):
        return
    ids = torch.zeros(1, dtype=torch.int64, device=table.device)
    if base is not None:
        ids += base.first
    records = encode(table, scheme, ids, base=base)
    if base is None:
        encode(table[:1], scheme)
    if not table.is_cpu:
        escaped = torch.zeros(8, dtype=torch.uint8, device=table.device)
        one = torch.ones(1, dtype=torch.int64, device=table.device)
        encode_bounded(table.detach(), scheme, ids, records, total=one, escaped=escaped, base=base)
        if base is None:
            encode_bounded(table.detach()[:1], scheme, None, records, total=None, escaped=escaped)


def escaped(records: Tensor) -> Tensor:
    """The numbers of the records whose row is escaped, in order, on the host; waits for the device."""
    return escape_flags(records).nonzero().view(-1).cpu()


def escape_flags(records: Tensor) -> Tensor:
    """Which records stand for a row that is escaped."""
    if records.shape[1] % 2 == 0 and records.storage_offset() % 2 == 0:
        return records.view(torch.int16)[:, 0] == -1  # both bytes in one pass
    return (records[:, 0] == _MARK) & (records[:, 1] == _MARK)


@cache
def _kernels() -> ModuleType:
    try:
        from holdfast.kernels.quantize import gpu
    except ImportError as error:
        raise ConfigurationError("rows on a GPU are encoded with Triton: install it, or copy the rows first") from error
    return gpu
