"""CRC-32 by folding: 64 bytes at a time are multiplied, without carries, into the 64 after them.

A message keeps its checksum when its first 128 bits are replaced by their products with two powers of x modulo the
polynomial, added to bits further on. What is left in the end are 16 bytes, and a table finishes them. Method and
constants are those of Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009),
for zlib's polynomial with its bits reversed. Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import WORD, instruction, pointer

STRIDE = 64  # bytes that one round takes in: four vectors, so that multiplications overlap
_VECTOR = ir.VectorType(WORD, 2)
_VECTOR_BYTES = 16
_POLYNOMIAL = 0xEDB88320
_OVER_FOUR = (0x0154442BD4, 0x01C6E41596)  # x^(512+32), x^(512-32): to the same vector of the next round
_OVER_ONE = (0x01751997D0, 0x00CCAA009E)  # x^(128+32), x^(128-32): to the next vector
_ONES = 0xFFFFFFFF  # what a checksum begins and ends with


def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    return values


_TABLE = _table()


@intrinsic
def _fold(typing: Any, data: Any, length: Any, rest: Any) -> Any:
    """Fold bytes, a multiple of the stride, to 16 that have the same checksum; they go to ``rest``."""

    def build(builder: Any, data: Any, length: Any, rest: Any) -> Any:
        alloca: Any = cgutils.alloca_once
        lanes = [alloca(builder, _VECTOR) for _ in range(STRIDE // _VECTOR_BYTES)]
        for number, lane in enumerate(lanes):
            value = _load(builder, data, number * _VECTOR_BYTES)
            builder.store(builder.xor(value, ir.Constant(_VECTOR, [_ONES, 0])) if number == 0 else value, lane)
        rounds = builder.sub(builder.udiv(length, ir.Constant(WORD, STRIDE)), ir.Constant(WORD, 1))
        for_range: Any = cgutils.for_range
        with for_range(builder, rounds) as loop:
            start = builder.add(data, builder.mul(loop.index, ir.Constant(WORD, STRIDE)))
            for number, lane in enumerate(lanes):
                further = _load(builder, start, STRIDE + number * _VECTOR_BYTES)
                builder.store(_folded(builder, builder.load(lane), further, _OVER_FOUR), lane)
        left = builder.load(lanes[0])
        for lane in lanes[1:]:
            left = _folded(builder, left, builder.load(lane), _OVER_ONE)
        builder.store(left, builder.inttoptr(rest, _VECTOR.as_pointer()), align=1)
        return length

    return instruction(build, types.int64, 3)


def _load(builder: Any, address: Any, offset: int) -> Any:
    place = builder.add(address, ir.Constant(WORD, offset))
    return builder.load(builder.inttoptr(place, _VECTOR.as_pointer()), align=1)


def _folded(builder: Any, value: Any, further: Any, powers: tuple[int, int]) -> Any:
    """``further``, to which the products of the halves of a vector are added."""
    byte = ir.IntType(8)
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, byte])
    get_function: Any = cgutils.get_or_insert_function
    multiply = get_function(builder.module, kind, "llvm.x86.pclmulqdq")
    constants = ir.Constant(_VECTOR, list(powers))
    low = builder.call(multiply, [value, constants, ir.Constant(byte, 0x00)])
    high = builder.call(multiply, [value, constants, ir.Constant(byte, 0x11)])
    return builder.xor(builder.xor(low, high), further)


fold = cast(Callable[[int, int, int], int], _fold)


@compiled(["void(int64, int64, int64, uint32[::1], uint8[::1], uint32[::1])"])
def _checksums(
    address: int,
    length: int,
    block_bytes: int,
    table: NDArray[np.uint32],
    rest: NDArray[np.uint8],
    found: NDArray[np.uint32],
) -> None:
    for number in range(found.shape[0]):
        start = number * block_bytes
        size = min(block_bytes, length - start)
        whole = size // STRIDE * STRIDE
        state = np.uint32(_ONES)
        if whole:
            fold(address + start, whole, rest.ctypes.data)
            state = np.uint32(0)
            for position in range(_VECTOR_BYTES):
                state = table[(state ^ rest[position]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
        tail = carray(pointer(address + start + whole), (size - whole,), np.uint8)
        for position in range(size - whole):
            state = table[(state ^ tail[position]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
        found[number] = state ^ np.uint32(_ONES)


def folded_checksums(data: memoryview, block_bytes: int) -> list[int]:
    """Of each block, without the GIL."""
    values = np.frombuffer(data, np.uint8)
    found = np.empty(-(-len(values) // block_bytes), dtype=np.uint32)
    rest = np.empty(_VECTOR_BYTES, dtype=np.uint8)
    _checksums(values.ctypes.data, len(values), block_bytes, _TABLE, rest, found)
    return [int(each) for each in found]
