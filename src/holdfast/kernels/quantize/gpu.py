"""Quantizers in Triton: gather, search and packing in one pass over the rows.

A program takes some rows. Each stripe of a row (the values that one place of the packed bytes holds) is a tile of its
own, so that threads hold a few values of every stripe and put bytes together without help from others. Sums are of
integers that single precision holds exactly, so that they may run across threads in any order; where a multiplication
is fused with an addition, its product is exact too, and elsewhere the compiler is told not to fuse.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.kernels.quantize.gpu_records import (
    load_base,
    load_stripe,
    put_even,
    put_header,
    put_special,
    put_thirds,
)
from holdfast.kernels.quantize.gpu_search import fit, narrow, nearest, only_inside
from holdfast.kernels.quantize.scheme import (
    LARGEST,
    OFFSET_SHARE,
    SMALLEST,
    Method,
    Scheme,
    code_bytes,
    greedy_lines,
    record_bytes,
    resolution,
    starts,
    stripe,
)

_NUMBERS = {Method.SYMMETRIC: 0, Method.ASYMMETRIC: 1, Method.GREEDY: 2, Method.FITTED: 3}
_SYMMETRIC, _ASYMMETRIC, _GREEDY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_LARGEST, _SMALLEST, _SHARE = tl.constexpr(LARGEST), tl.constexpr(SMALLEST), tl.constexpr(OFFSET_SHARE)
_INFINITE = tl.constexpr(0x7F80_0000)
_UPPER_16, _UPPER_17 = tl.constexpr(-0x1_0000), tl.constexpr(-0x8000)  # of a float's bits

_VALUES_PER_PROGRAM = 512  # sixteen for each thread of one warp, which never waits for another
_WARPS = 1
_MOST_VALUES = 1024  # of a row: one warp holds no more in its registers


def can_encode(scheme: Scheme, dim: int) -> bool:
    """Whether there is a kernel for it."""
    return scheme.method in _NUMBERS and dim <= _MOST_VALUES


def encode(
    table: Tensor,
    scheme: Scheme,
    ids: Tensor | None = None,
    out: Tensor | None = None,
    *,
    total: Tensor | None = None,
    escaped: Tensor | None = None,
    base: BaselineRows | None = None,
) -> Tensor:
    """Records of the rows ``ids`` of a contiguous float32 table, or of all its rows; escaped ones are empty.

    Only queued: nothing here waits for the device. Ids (int64 or int32) are not checked. Of ``ids`` only the first
    ``total`` (one int64 on the device) are encoded. Rows that are escaped are added to the set ``escaped``, by their
    numbers among those encoded. With ``base``, rows are encoded as differences from it.
    """
    if scheme.method not in _NUMBERS:
        raise ConfigurationError(
            f"{scheme.method.value} grids are not supported on a GPU; copy the rows to the host first"
        )
    count, dim = (table if ids is None else ids).shape[0], table.shape[1]
    if out is None:
        out = torch.empty(count, record_bytes(scheme, dim), dtype=torch.uint8, device=table.device)
    if not count:
        return out
    lines, constants = _lines(scheme, dim, table.device), _constants(scheme, dim)
    header, size = (4, 0) if base is None else (base.scheme.header_bytes, base.records.shape[1])
    with _on_device_of(table):
        _encode[(triton.cdiv(count, constants["rows"]),)](
            table, lines if ids is None else ids, out, lines,
            lines if total is None else total, lines if escaped is None else escaped.view(torch.int32),
            out if base is None else base.records, lines if base is None else base.escapes,
            count, float(np.float32(1) / np.float32(dim)), 0 if base is None else base.first,
            **constants, tries=lines.shape[0], base_header=header, base_size=size, differs=base is not None,
            gathered=ids is not None, words=_has_words(out, scheme), bounded=total is not None,
            listed=escaped is not None, num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _has_words(out: Tensor, scheme: Scheme) -> bool:
    """Whether every record starts with a 32-bit word of its header."""
    return scheme.header_bytes == 4 and out.shape[1] % 4 == 0 and out.data_ptr() % 4 == 0


@cache
def _constants(scheme: Scheme, dim: int) -> dict[str, int]:
    """What the kernel is compiled for."""
    width, places = stripe(dim, scheme.bits), {8: 1, 4: 2, 3: 4, 2: 4}[scheme.bits]
    tile = triton.next_power_of_2(width)
    return {
        "dim": dim, "width": width, "tile": tile, "places": places,
        "rows": max(1, _VALUES_PER_PROGRAM // (tile * places)),
        "bits": scheme.bits, "method": _NUMBERS[scheme.method], "finest": resolution(dim), "bins": scheme.num_bins,
        "header": scheme.header_bytes, "used": scheme.header_bytes + code_bytes(dim, scheme.bits),
        "size": record_bytes(scheme, dim),
    }  # fmt: skip


@cache
def _lines(scheme: Scheme, dim: int, device: torch.device) -> Tensor:
    """The grids that a search tries (see ``scheme``)."""
    if scheme.method is Method.GREEDY:
        return torch.from_numpy(greedy_lines(scheme, dim)).to(device)
    if scheme.method is Method.FITTED:
        return torch.from_numpy(starts(scheme.bits, dim)).to(device)
    return torch.zeros(1, 2, device=device)


# Triton reads annotations as code of the kernel: only its own may stand there.
# Sizes are not specialized on, nor is where ids begin: another number of touched rows, or the second half of them, must
# not compile anything in the middle of training.
@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["count", "share", "base_first"],
    do_not_specialize_on_alignment=["ids", "total", "escaped", "base_records", "base_escapes"],
)
def _encode(  # type: ignore[no-untyped-def]
    table, ids, out, lines, total, escaped, base_records, base_escapes, count, share, base_first,
    dim: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, places: tl.constexpr, rows: tl.constexpr,
    bits: tl.constexpr, method: tl.constexpr, finest: tl.constexpr, bins: tl.constexpr, tries: tl.constexpr,
    header: tl.constexpr, used: tl.constexpr, size: tl.constexpr, base_header: tl.constexpr, base_size: tl.constexpr,
    differs: tl.constexpr, gathered: tl.constexpr, words: tl.constexpr, bounded: tl.constexpr, listed: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * rows
    if bounded:
        count = tl.minimum(tl.load(total), count)
        if first >= count:
            return
    position = first + tl.arange(0, rows)
    there = position < count
    row = tl.minimum(position, count - 1)
    if gathered:
        row = tl.load(ids + row).to(tl.int64)
    start = table + row * dim
    if differs:
        base = load_base(base_records, base_escapes, row - base_first, dim, base_header, base_size)
    else:
        base = (start, start)
    x0 = load_stripe(start, base, 0, dim, width, tile, differs)
    x1, x2, x3 = x0, x0, x0
    if places > 1:
        x1 = load_stripe(start, base, width, dim, width, tile, differs)
    if places > 2:
        x2 = load_stripe(start, base, min(2 * width, dim - 1), dim, width, tile, differs)
        x3 = load_stripe(start, base, min(3 * width, dim - 1), dim, width, tile, differs)
    tiles = (x0, x1, x2, x3)
    low, high, finite = _bounds(tiles)
    scale, zero = _find_grid(tiles, low, high, lines, share, bits, method, dim, width, places, finest, tries, bins)
    inverse = tl.div_rn(tl.zeros_like(scale) + 1.0, scale)
    constant, plain = _kinds(low, high, finite, method)
    plain, record = there & plain, out + position * size
    put_header(record, scale, zero, plain, header, words)
    if bits == 3:
        put_thirds(tiles, start, base, record + header, zero, inverse, plain, dim, width, tile, differs)
    else:
        put_even(tiles, record + header, zero, inverse, plain, bits, dim, width, places)
    for byte in tl.static_range(used, size):
        tl.store(record + byte, (position * 0).to(tl.uint8), mask=plain)
    special = there & (plain == 0)
    if tl.max(special.to(tl.int32), axis=0) > 0:
        put_special(record, low, constant, special, size)
        if listed:
            bit = (position * 0 + 1).to(tl.int32) << (position & 31).to(tl.int32)
            tl.atomic_or(escaped + (position >> 5), bit, mask=special & (constant == 0), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _bounds(tiles):  # type: ignore[no-untyped-def]
    """Both ends of each row's range, and whether all its values are finite."""
    smallest = tl.minimum(tl.minimum(tiles[0], tiles[1]), tl.minimum(tiles[2], tiles[3]))
    largest = tl.maximum(tl.maximum(tiles[0], tiles[1]), tl.maximum(tiles[2], tiles[3]))
    size = tiles[0].to(tl.int32, bitcast=True) & 0x7FFF_FFFF
    for place in tl.static_range(1, 4):
        size = tl.maximum(size, tiles[place].to(tl.int32, bitcast=True) & 0x7FFF_FFFF)
    # Never -0.0, which adding zero takes away.
    return tl.min(smallest, axis=1) + 0.0, tl.max(largest, axis=1) + 0.0, tl.max(size, axis=1) < _INFINITE


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _find_grid(  # type: ignore[no-untyped-def]
    tiles, low, high, lines, share,
    bits: tl.constexpr, method: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr,
    finest: tl.constexpr, tries: tl.constexpr, bins: tl.constexpr,
):  # fmt: skip
    """Scale and zero point as they are stored: what the search found to the nearest, plain ranges to the outside."""
    top = tl.full((), (1 << bits) - 1, tl.float32)
    if method == _SYMMETRIC:
        scale = _scale_up(tl.div_rn(2.0 * tl.maximum(-low, high), tl.zeros_like(low) + top))
        zero = -scale * (top * 0.5)
    elif method == _ASYMMETRIC:
        number = low.to(tl.int32, bitcast=True)
        number = (number + tl.where(number < 0, 0xFFFF, 0)) & _UPPER_16
        zero = number.to(tl.float32, bitcast=True)
        scale = _scale_up(tl.div_rn(high - zero, tl.zeros_like(low) + top))
    else:
        factor = tl.div_rn(tl.zeros_like(low) + finest * 1.0, high - low)
        u0 = _to_units(tiles[0], low, factor, finest, 0, dim, width)
        u1, u2, u3 = u0, u0, u0
        total = u0
        if places > 1:
            u1 = _to_units(tiles[1], low, factor, finest, 1, dim, width)
            total += u1
        if places > 2:
            u2 = _to_units(tiles[2], low, factor, finest, 2, dim, width)
            u3 = _to_units(tiles[3], low, factor, finest, 3, dim, width)
            total += u2 + u3
        units, total = (u0, u1, u2, u3), tl.sum(total, axis=1)
        if method == _GREEDY:
            scale, zero = narrow(units, total, low, high, lines, top, dim, width, places, finest, tries, bins)
        else:
            scale, zero = fit(units, total, low, high, lines, share, top, dim, width, places, finest, tries)
        scale, zero = _round(scale, 15, _UPPER_17), _round(zero, 16, _UPPER_16)
    return scale, zero


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _to_units(  # type: ignore[no-untyped-def]
    x, low, factor, finest: tl.constexpr, place: tl.constexpr, dim: tl.constexpr, width: tl.constexpr
):
    """The rows as integers from 0 to ``finest``."""
    return only_inside(nearest((x - low[:, None]) * factor[:, None], finest * 1.0), place, dim, width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scale_up(scale):  # type: ignore[no-untyped-def]
    return ((scale.to(tl.int32, bitcast=True) + 0x7FFF) & _UPPER_17).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _round(x, dropped: tl.constexpr, kept: tl.constexpr):  # type: ignore[no-untyped-def]
    """Drop so many bits: to the nearest, an even one from the middle."""
    number = x.to(tl.int32, bitcast=True)
    number = (number + ((1 << (dropped - 1)) - 1) + ((number >> dropped) & 1)) & kept
    return number.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _kinds(low, high, finite, method: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which rows are constant, and which have a grid."""
    spread, largest = high - low, tl.maximum(-low, high)
    beyond = (largest > _LARGEST) | (spread < _SMALLEST)
    if method != _SYMMETRIC:
        beyond = beyond | (spread < largest * _SHARE)
    return finite & (spread == 0.0), finite & (beyond == 0)


def _on_device_of(table: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, which with several in one process need not be the tensor's."""
    if table.is_cuda and table.get_device() != torch.cuda.current_device():
        return torch.cuda.device(table.device)
    return nullcontext()
