"""Sets of rows as NumPy arrays. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError

Bits = NDArray[np.uint8]


class HostKernels(Protocol):
    """What Numba and NumPy both have."""

    def mark(self, bits: Bits, ids: NDArray[Any], rows: int, /) -> int: ...
    def mark_nonzero_rows(self, bits: Bits, patterns: NDArray[Any], /) -> None: ...
    def list_ids(self, bits: Bits, start: int, stop: int, /) -> NDArray[np.int64]: ...
    def count(self, bits: Bits, start: int, stop: int, /) -> int: ...


def set_bytes(rows: int) -> int:
    """Bytes of a set over ``rows`` rows."""
    return (rows + 63) // 64 * 8


def new_set(rows: int) -> Bits:
    """An empty set."""
    return np.zeros(set_bytes(rows), dtype=np.uint8)


def marker(bits: Bits, rows: int) -> Callable[[NDArray[Any]], None]:
    """Adds ids (integers of any shape, in any order, repeated or not) to a set over ``rows`` rows.

    One outside ``[0, rows)`` raises ConfigurationError.
    """
    kernel = host_kernels().mark

    def add(ids: NDArray[Any]) -> None:
        array = ids if ids.dtype in (np.int64, np.int32) else ids.astype(np.int64)
        array = np.ascontiguousarray(array).reshape(-1)
        outside = kernel(bits, array, rows)
        if outside >= 0:
            raise ConfigurationError(f"row {array[outside]} is outside a table of {rows} rows")

    return add


def list_ids(bits: Bits, start: int, stop: int) -> NDArray[np.int64]:
    """The set's rows in ``[start, stop)``, ascending."""
    check_range(bits.size, start, stop)
    return host_kernels().list_ids(bits, start, stop)


def count(bits: Bits, start: int, stop: int) -> int:
    """How many rows of ``[start, stop)`` are in the set."""
    check_range(bits.size, start, stop)
    return host_kernels().count(bits, start, stop)


def merge(into: Bits, other: Bits) -> None:
    """Add the rows of ``other``."""
    words = into.view(np.uint64)
    np.bitwise_or(words, other.view(np.uint64), out=words)


def clear(bits: Bits) -> None:
    """Remove every row."""
    bits.fill(0)


def check_range(set_bytes: int, start: int, stop: int) -> None:
    """Raise ConfigurationError for what is no range of a set."""
    if not 0 <= start <= stop <= 8 * set_bytes:
        raise ConfigurationError(f"rows {start} to {stop} are not a range of a set over {8 * set_bytes} rows")


@cache
def host_kernels() -> HostKernels:
    """Numba's, or else NumPy's."""
    try:
        from holdfast.kernels.bit_sets import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.bit_sets import reference

        return cast(HostKernels, reference)
    return cast(HostKernels, cpu)
