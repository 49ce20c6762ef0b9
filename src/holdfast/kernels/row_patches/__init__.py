"""Puts rows back into a piece of a table: those of many that lie in it."""

from __future__ import annotations

from torch import Tensor

from holdfast.kernels.devices import triton_works


def put_inside(target: Tensor, values: Tensor, ids: Tensor, *, first: int) -> None:
    """Write ``values`` to the rows ``ids`` of ``target``, whose own first row is number ``first``; others are skipped.

    Equal ids have equal values. Nothing waits for the device, where Triton works there.
    """
    if not len(ids):
        return
    if target.is_cuda and triton_works():
        from holdfast.kernels.row_patches import gpu

        gpu.put_inside(target, values, ids, first)
        return
    inside = (ids >= first) & (ids < first + len(target))
    target[ids[inside] - first] = values[inside]
