"""Rows as tiles and codes as records, in Triton (see ``gpu_search`` for tiles)."""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from holdfast.kernels.quantize.gpu_search import nearest, only_inside
from holdfast.kernels.quantize.scheme import CONSTANT, ESCAPED

_CONSTANT, _ESCAPED = tl.constexpr(CONSTANT), tl.constexpr(ESCAPED)


# Triton reads annotations as code of the kernel: only its own may stand there.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def load_stripe(  # type: ignore[no-untyped-def]
    start, base, first: tl.constexpr, stop: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    differs: tl.constexpr,
):  # fmt: skip
    """Values ``first ..`` of each row; beyond the stripe or the row, the last one again."""
    column = first + tl.arange(0, tile)
    if tile != width or first + width > stop:
        column = tl.minimum(column, stop - 1)
    return load_values(start, base, column, differs)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def load_values(start, base, column, differs: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some values of each row, less those of its baseline where rows are stored as differences."""
    x = tl.load(start[:, None] + column[None, :])
    if differs:
        body, scale, zero, constant, fixed, escaped, exact = base
        code = tl.load(body[:, None] + column[None, :]).to(tl.float32)
        before = zero[:, None] + scale[:, None] * code
        before = tl.where(constant[:, None], fixed[:, None], before)
        kept = tl.load(exact[:, None] + column[None, :], mask=escaped[:, None], other=0.0)
        x = x - tl.where(escaped[:, None], kept, before)
    return x


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def load_base(  # type: ignore[no-untyped-def]
    records, escapes, number, dim: tl.constexpr, header: tl.constexpr, size: tl.constexpr
):
    """What ``load_values`` has to know of rows that were stored in 8 bits, by their numbers."""
    record = records + number * size
    first, second, third = _field(record, 0), _field(record, 2), _field(record, 4)
    scale = (first << 15).to(tl.float32, bitcast=True)
    zero = (second << 16).to(tl.float32, bitcast=True)
    if header == 2:
        zero = -scale * 127.5
    value = second | (third << 16)  # a constant row's, or the number of one that was kept as it was
    escaped = first == _ESCAPED
    exact = escapes + tl.where(escaped, value, 0).to(tl.int64) * dim
    return record + header, scale, zero, first == _CONSTANT, value.to(tl.float32, bitcast=True), escaped, exact


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _field(record, at: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two bytes; records may start at odd addresses."""
    return tl.load(record + at).to(tl.int32) | (tl.load(record + at + 1).to(tl.int32) << 8)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def find_code(  # type: ignore[no-untyped-def]
    x, zero, inverse, top, place: tl.constexpr, dim: tl.constexpr, width: tl.constexpr
):
    """The codes of a tile of stripe ``place``."""
    return only_inside(nearest((x - zero[:, None]) * inverse[:, None], top), place, dim, width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def put_field(record, at: tl.constexpr, field, mask):  # type: ignore[no-untyped-def]
    """Two bytes; records may start at odd addresses."""
    tl.store(record + at, (field & 0xFF).to(tl.uint8), mask=mask)
    tl.store(record + at + 1, ((field >> 8) & 0xFF).to(tl.uint8), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def put_header(  # type: ignore[no-untyped-def]
    record, scale, zero, mask, header: tl.constexpr, words: tl.constexpr
):
    """Scale field and zero field, at once where records are made of whole words."""
    first = (scale.to(tl.int32, bitcast=True) >> 15) & 0xFFFF
    second = zero.to(tl.int32, bitcast=True) >> 16
    if words:
        tl.store(record.to(tl.pointer_type(tl.int32), bitcast=True), first | (second << 16), mask=mask)
    else:
        put_field(record, 0, first, mask)
        if header == 4:
            put_field(record, 2, second, mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def put_even(  # type: ignore[no-untyped-def]
    tiles, body, zero, inverse, mask,
    bits: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr,
):  # fmt: skip
    """Codes of 2, 4 or 8 bits: shifts are products, unions are sums, and all of them exact."""
    top = (1 << bits) - 1.0
    byte = find_code(tiles[0], zero, inverse, top, 0, dim, width)
    for place in tl.static_range(1, places):
        byte += (1 << (bits * place)) * 1.0 * find_code(tiles[place], zero, inverse, top, place, dim, width)
    column = tl.arange(0, byte.shape[1])
    inside = mask[:, None] & (column < width)[None, :]
    tl.store(body[:, None] + column[None, :], byte.to(tl.int32).to(tl.uint8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _fours(tiles, zero, inverse, dim: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four codes of three bits each as one integer."""
    four = find_code(tiles[0], zero, inverse, 7.0, 0, dim, width)
    for place in tl.static_range(1, 4):
        four += (1 << (3 * place)) * 1.0 * find_code(tiles[place], zero, inverse, 7.0, place, dim, width)
    return four.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def put_thirds(  # type: ignore[no-untyped-def]
    tiles, start, base, body, zero, inverse, mask,
    dim: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, differs: tl.constexpr,
):  # fmt: skip
    """Codes of 3 bits: a byte of the low two of each four, then half a byte of their third ones."""
    four = _fours(tiles, zero, inverse, dim, width)
    byte = (four & 0x03) | ((four >> 1) & 0x0C) | ((four >> 2) & 0x30) | ((four >> 3) & 0xC0)
    column = tl.arange(0, tile)
    inside = mask[:, None] & (column < width)[None, :]
    tl.store(body[:, None] + column[None, :], byte.to(tl.uint8), mask=inside)
    half: tl.constexpr = (width + 1) // 2
    part: tl.constexpr = tile // 2 if tile > 1 else 1
    lower = _third_bits(start, base, zero, inverse, 0, half, dim, width, part, differs)
    upper = _third_bits(start, base, zero, inverse, half, width - half, dim, width, part, differs)
    column = tl.arange(0, part)
    inside = mask[:, None] & (column < half)[None, :]
    tl.store(body[:, None] + width + column[None, :], (lower | (upper << 4)).to(tl.uint8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _third_bits(  # type: ignore[no-untyped-def]
    start, base, zero, inverse, first: tl.constexpr, length: tl.constexpr,
    dim: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, differs: tl.constexpr,
):  # fmt: skip
    """Of four codes each, from column ``first`` of every stripe on. The rows are read anew: other threads hold them."""
    column = tl.arange(0, tile)
    found = tl.zeros([start.shape[0], tile], dtype=tl.int32)
    for place in tl.static_range(4):
        value = place * width + first + column
        if place * width + first + tile > dim:
            value = tl.minimum(value, dim - 1)
        x = load_values(start, base, value, differs)
        code = nearest((x - zero[:, None]) * inverse[:, None], 7.0).to(tl.int32)
        inside = (column < length) & (place * width + first + column < dim)
        found |= tl.where(inside[None, :], (code >> 2) << place, 0)
    return found


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def put_special(record, low, constant, mask, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Records without codes: a constant row's value, or nothing."""
    put_field(record, 0, tl.where(constant, _CONSTANT, _ESCAPED), mask)
    value = tl.where(constant, low.to(tl.int32, bitcast=True), 0)
    put_field(record, 2, value, mask)
    put_field(record, 4, value >> 16, mask)
    for byte in range(6, size):
        tl.store(record + byte, (value * 0).to(tl.uint8), mask=mask)
