"""Puts rows back with Triton: a row that lies elsewhere costs no more than a look at its number."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

_ROWS, _BYTES = 32, 256  # looked at together; copied together


def put_inside(target: Tensor, values: Tensor, ids: Tensor, first: int) -> None:
    """See ``row_patches``: only queued. Rows are contiguous; ids are int64 or int32."""
    size = values.nbytes // len(values)
    if not size or not len(target):
        return
    word = next(each for each in (torch.int32, torch.int16, torch.uint8) if size % each.itemsize == 0)
    to, source = (each.view(len(each), -1).view(word) for each in (target, values))
    with _on_device_of(target):
        _put[(triton.cdiv(len(ids), _ROWS),)](
            to, source, ids, len(ids), first, len(target), size // word.itemsize, rows=_ROWS, together=_BYTES // 4
        )


# Triton reads annotations as code of the kernel: only its own may stand there.
@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["count", "first", "length", "width"], do_not_specialize_on_alignment=["ids"]
)
def _put(  # type: ignore[no-untyped-def]
    target, values, ids, count, first, length, width, rows: tl.constexpr, together: tl.constexpr
):
    item = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    row = tl.load(ids + item, mask=item < count, other=-1).to(tl.int64) - first
    inside = (item < count) & (row >= 0) & (row < length)
    if tl.max(inside.to(tl.int32), axis=0) > 0:
        column = tl.arange(0, together).to(tl.int64)
        while tl.min(column, axis=0) < width:
            wanted = inside[:, None] & (column < width)[None, :]
            found = tl.load(values + item[:, None] * width + column[None, :], mask=wanted, other=0)
            tl.store(target + row[:, None] * width + column[None, :], found, mask=wanted)
            column += together


def _on_device_of(numbers: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, which with several in one process need not be the tensor's."""
    if numbers.is_cuda and numbers.get_device() != torch.cuda.current_device():
        return torch.cuda.device(numbers.device)
    return nullcontext()
