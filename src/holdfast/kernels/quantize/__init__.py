"""Rows in, records out: the same bytes from NumPy, Numba and Triton (docs/spec/codec.md)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

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
    "in_parts",
    "record_bytes",
    "warm_up",
]

Rows = NDArray[np.float32]
Records = NDArray[np.uint8]
Result = TypeVar("Result")

_PART = 16384  # rows that a thread takes at a time, at least: for fewer, asking for the next ones would show
_TOGETHER = 16  # rows that the kernels work on at once
_PARTS_PER_THREAD = 4  # so that a thread that was held up leaves rows to the others


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


def in_parts(rows: int, work: Callable[[slice], Result], *, threads: int) -> list[Result]:
    """Do the work on all rows, some at a time, on this thread and so many less one of our own; results in any order."""
    if threads == 1 or rows <= _PART:
        return [work(slice(0, rows))]
    size = max(_PART, -(-rows // (threads * _PARTS_PER_THREAD * _TOGETHER)) * _TOGETHER)
    parts = iter([slice(start, min(start + size, rows)) for start in range(0, rows, size)])

    def take_parts() -> list[Result]:
        return [work(part) for part in parts]  # each part goes to one thread: next() on a list's iterator is atomic

    pool = _pool(threads - 1, os.getpid())
    others = [pool.submit(take_parts) for _ in range(threads - 1)]
    return [*take_parts(), *(result for other in others for result in other.result())]


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: starting them takes a tenth of what a plain grid of a table takes. A fork has none of them."""
    return ThreadPoolExecutor(threads, thread_name_prefix="holdfast-quantize")


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
