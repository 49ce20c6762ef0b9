"""How rows of a table begin: a function of a key, the row and the column, so that any server can compute its own rows.

The generator counts instead of remembering: no row depends on another one, on the number of threads, or on how a table
is divided. Numba and NumPy give the same bytes. No torch: servers run without it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Protocol, cast

import numpy as np

from holdfast.errors import ConfigurationError
from holdfast.kernels.parts import in_parts
from holdfast.kernels.start.reference import Floats
from holdfast.types import Start, StartKind

__all__ = ["fill", "table_key", "warm_up"]

_PART = 1024  # rows that a thread takes at a time, at least


def table_key(seed: int, name: str) -> int:
    """What the rows of a table are drawn from, 64 bits: tables of different names have nothing in common.

    Args:
        seed: Of the whole model.
        name: The table's.
    """
    digest = hashlib.sha256(f"{seed}\n{name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little")


def fill(rows: Floats, start: Start, *, key: int, first_row: int = 0, threads: int = 1) -> None:
    """Write the beginning of some rows of a table.

    Args:
        rows: ``[rows, width]``, written to.
        start: How they begin.
        key: The table's.
        first_row: The row of the table that ``rows[0]`` is.
        threads: How many share the work.
    """
    if rows.ndim != 2 or rows.dtype != np.float32 or not rows.flags.c_contiguous or not rows.flags.writeable:
        raise ConfigurationError(f"rows must be a writable C-contiguous float32 matrix, got {rows.dtype} {rows.shape}")
    if start.kind is StartKind.CONSTANT:
        rows[:] = start.first
        return
    draw = _kernels().normal if start.kind is StartKind.NORMAL else _kernels().uniform
    first, second = float(start.first), float(start.second)
    in_parts(
        len(rows),
        lambda part: draw(rows[part], np.uint64(key), first_row + part.start, first, second),
        threads=threads,
        part_rows=_PART,
    )


def warm_up() -> None:
    """Compile or load now what ``fill`` needs."""
    _kernels()


class _Kernels(Protocol):
    def uniform(self, rows: Floats, key: np.uint64, first_row: int, low: float, high: float, /) -> None: ...
    def normal(self, rows: Floats, key: np.uint64, first_row: int, mean: float, std: float, /) -> None: ...


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.start import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.start import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
