"""Plain asymmetric grids of 8 and 4 bits in Numba. They need no search, so they run at the speed of memory.

Sixteen rows at a time, all in instructions of lanes. Where a row of sixteen needs more than a grid, because it is
constant or escaped, the general way takes over.
"""

from __future__ import annotations

import numpy as np

from holdfast.kernels.quantize.lane_bits import (
    any_less,
    any_nan,
    greatest_of_each,
    header_words,
    least_of_each,
    put_bytes,
    put_halves,
    put_word,
    scale_above,
    zero_below,
)
from holdfast.kernels.quantize.lanes import (
    FLOAT,
    INT,
    LANES,
    MATRIX,
    ROWS,
    Floats,
    compiled,
    load_row,
    same,
    store,
    where_less,
)
from holdfast.kernels.quantize.packing import RECORDS, Records
from holdfast.kernels.quantize.scheme import LARGEST, OFFSET_SHARE, SMALLEST

HEADER = 4  # bytes of scale and zero point

_ZERO_POINT, _INVERSE, _HEADER, _LOWS, _HIGHS, _NAMES = 0, 1, 2, 3, 3 + LANES, 3 + 2 * LANES  # of ``m``
_ZERO, _ONE = np.float32(0), np.float32(1)
_SMALLEST, _LARGEST, _OFFSET_SHARE = np.float32(SMALLEST), np.float32(LARGEST), np.float32(OFFSET_SHARE)


def plain_rows_fit(dim: int, bits: int) -> bool:
    """Whether rows pack without a rest: in 8 bits by packing the last values twice, in 4 bits in whole lanes."""
    return dim >= LANES if bits == 8 else bits == 4 and dim % (2 * LANES) == 0


@compiled(ROWS, INT, FLOAT, MATRIX, returns=INT)
def _find_grids(rows: Floats, first: int, top: np.float32, m: Floats) -> int:
    """The grids of sixteen rows, with codes from 0 to ``top``; 0 where one of the rows has none."""
    last, zero, finite = rows.shape[1] - LANES, same(_ZERO), same(_ZERO)
    for lane in range(LANES):
        x = load_row(rows, first + lane, last)
        lows, highs, checks = x, x, x
        for value in range(0, last, LANES):
            x = load_row(rows, first + lane, value)
            lows, highs = where_less(x, lows, x, lows), where_less(highs, x, x, highs)
            checks += x
        store(m, _LOWS + lane, lows)
        store(m, _HIGHS + lane, highs)
        finite += checks * zero
    low, high = least_of_each(m, _LOWS) + zero, greatest_of_each(m, _HIGHS) + zero  # never -0.0
    spread, largest = high - low, where_less(zero - low, high, high, zero - low)
    zero_point = zero_below(low)
    scale = scale_above((high - zero_point) / same(top))
    store(m, _ZERO_POINT, zero_point)
    store(m, _INVERSE, same(_ONE) / scale)
    store(m, _HEADER, header_words(scale, zero_point))
    beyond = any_less(same(_LARGEST), largest) | any_less(spread, same(_SMALLEST))
    return 0 if beyond | any_less(spread, largest * same(_OFFSET_SHARE)) | any_nan(finite, finite) else 1


@compiled(ROWS, RECORDS, INT, INT, returns=INT)
def encode_plain_rows(rows: Floats, out: Records, first: int, bits: int) -> int:
    """Write the records of rows from ``first`` on, sixteen at a time; the first row that is left to others."""
    m = np.empty((_NAMES, LANES), np.float32)
    words, dim = m.view(np.uint32), rows.shape[1]
    width, last, top = dim // 2, dim - LANES, np.float32((1 << bits) - 1)
    while first + LANES <= rows.shape[0]:
        if not _find_grids(rows, first, top, m):
            break
        for row in range(first, first + LANES):
            zero, inverse = same(m[_ZERO_POINT, row - first]), same(m[_INVERSE, row - first])
            put_word(out, row, words[_HEADER, row - first])
            if bits == 8:
                for value in range(0, last, LANES):
                    put_bytes(out, row, HEADER + value, (load_row(rows, row, value) - zero) * inverse)
                put_bytes(out, row, HEADER + last, (load_row(rows, row, last) - zero) * inverse)
            else:
                for value in range(0, width, LANES):
                    low = (load_row(rows, row, value) - zero) * inverse
                    put_halves(out, row, HEADER + value, low, (load_row(rows, row, width + value) - zero) * inverse)
        first += LANES
    return first
