"""Rows in, records out: the same bytes from NumPy, Numba and Triton (docs/spec/codec.md)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.parts import in_parts
from holdfast.kernels.quantize.scheme import BITS, CONSTANT, ESCAPED, MAX_DIM, Method, Scheme, record_bytes

__all__ = [
    "BITS",
    "CONSTANT",
    "ESCAPED",
    "MAX_DIM",
    "Encoding",
    "Method",
    "Scheme",
    "decode",
    "encode",
    "record_bytes",
    "warm_up",
]

Rows = NDArray[np.float32]
Records = NDArray[np.uint8]


class Encoding(NamedTuple):
    """Records, and how many of them say that their row is escaped."""

    records: Records
    escaped: int


def encode(rows: Rows, scheme: Scheme, *, threads: int = 1) -> Encoding:
    """A record for each of the ``[rows, dim]`` rows; escaped rows get an empty one."""
    rows = np.ascontiguousarray(rows)
    out = np.empty((len(rows), record_bytes(scheme, rows.shape[1])), dtype=np.uint8)
    kernels = _kernels()
    found = in_parts(len(rows), lambda part: kernels.encode(rows[part], scheme, out[part]), threads=threads)
    return Encoding(records=out, escaped=sum(found))


def decode(records: Records, scheme: Scheme, dim: int, *, threads: int = 1) -> Rows:
    """The rows of the records; zeros for escaped ones."""
    records = np.ascontiguousarray(records)
    out = np.empty((len(records), dim), dtype=np.float32)
    kernels = _kernels()
    in_parts(len(records), lambda part: kernels.decode(records[part], scheme, dim, out[part]), threads=threads)
    return out


def warm_up() -> None:
    """Compile or load now what encoding and decoding need."""
    _kernels()


class _Kernels(Protocol):
    def encode(self, rows: Rows, scheme: Scheme, out: Records, /) -> int: ...
    def decode(self, records: Records, scheme: Scheme, dim: int, out: Rows, /) -> None: ...


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.quantize import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.quantize import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
