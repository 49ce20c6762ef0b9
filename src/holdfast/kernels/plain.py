"""Arrays as kernels take them."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError

Number = TypeVar("Number", bound=np.generic)

_LINE_BYTES = 64  # of a cache line


def on_lines(shape: tuple[int, ...], dtype: type[Number]) -> NDArray[Number]:
    """New memory that begins where a cache line does: kernels can write whole lines to it, past the caches."""
    size_bytes = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size_bytes + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + size_bytes].view(dtype).reshape(shape)


def plain(array: NDArray[Number]) -> NDArray[Number]:
    """Contiguous and aligned: what comes in a message may be neither."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def rows_inside(rows: NDArray[Any], size: int, holder: str) -> NDArray[np.int64]:
    """Rows as kernels take them; one that the holder does not have raises ConfigurationError."""
    known = plain(rows.astype(np.int64, copy=False))
    if len(known) and not (known.min() >= 0 and known.max() < size):
        outside = known[(known < 0) | (known >= size)][0]
        raise ConfigurationError(f"row {outside} is outside {holder} of {size} rows")
    return known
