"""CRC-32 by folding: four vectors at a time are multiplied, without carries, into the four after them.

A message keeps its checksum when its first 128 bits are replaced by their products with two powers of x modulo the
polynomial, added to bits further on. What is left in the end are 16 bytes, and a table finishes them. The method is
that of Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009), for zlib's
polynomial with its bits reversed. A vector has 128 bits, or 512 where the processor multiplies four pairs at once.
Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import HALF_WORD, WORD, instruction, pointer


def _parts() -> int:
    """Of 128 bits, in a vector."""
    features = binding.get_host_cpu_features()
    return 4 if features.get("vpclmulqdq") and features.get("avx512f") else 1


_PARTS = _parts()
_PART_BYTES = 16
_VECTOR_BYTES = _PARTS * _PART_BYTES
_VECTORS = 4  # in one round, so that multiplications overlap
STRIDE = _VECTORS * _VECTOR_BYTES  # bytes that one round takes in
_PART = ir.VectorType(WORD, 2)
_VECTOR = ir.VectorType(WORD, 2 * _PARTS)
_POLYNOMIAL = 0xEDB88320
ONES = 0xFFFFFFFF  # what a checksum begins and ends with


def _power(bits: int) -> int:
    """x to this power modulo the polynomial, its bits reversed in 33."""
    value = 1 << 31
    for _ in range(bits):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value << 1


def _powers(distance_bytes: int) -> tuple[int, int]:
    """What the halves of 128 bits are multiplied with to be added so many bytes further on."""
    return _power(8 * distance_bytes + 32), _power(8 * distance_bytes - 32)


def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    return values


TABLE = _table()


def _before_ones() -> int:
    """What 32 bits must be for a checksum that begins with zeros, not ones, to be all ones after them."""
    value = ONES
    for _ in range(32):
        value = ((value ^ _POLYNOMIAL) << 1 | 1) if value >> 31 else value << 1
    return value


# Bytes to stand before a message whose checksum is to be folded from its first byte on: it then begins with zeros.
FIRST: NDArray[np.uint8] = np.frombuffer(bytearray(60) + _before_ones().to_bytes(4, "little"), np.uint8)


@intrinsic
def _fold(typing: Any, data: Any, length: Any, rest: Any) -> Any:
    """Fold bytes, a multiple of the stride, to 16 that have the same checksum; they go to ``rest``."""

    def build(builder: Any, data: Any, length: Any, rest: Any) -> Any:
        alloca: Any = cgutils.alloca_once
        kept = [alloca(builder, _VECTOR) for _ in range(_VECTORS)]
        for number, vector in enumerate(kept):
            value = _load(builder, data, number * _VECTOR_BYTES)
            first = ir.Constant(_VECTOR, [ONES, *[0] * (2 * _PARTS - 1)])
            builder.store(builder.xor(value, first) if number == 0 else value, vector)
        rounds = builder.sub(builder.udiv(length, ir.Constant(WORD, STRIDE)), ir.Constant(WORD, 1))
        for_range: Any = cgutils.for_range
        with for_range(builder, rounds) as loop:
            start = builder.add(data, builder.mul(loop.index, ir.Constant(WORD, STRIDE)))
            for number, vector in enumerate(kept):
                further = _load(builder, start, STRIDE + number * _VECTOR_BYTES)
                builder.store(folded(builder, builder.load(vector), further, STRIDE), vector)
        left = builder.load(kept[0])
        for vector in kept[1:]:
            left = folded(builder, left, builder.load(vector), _VECTOR_BYTES)
        builder.store(_narrowed(builder, left), builder.inttoptr(rest, _PART.as_pointer()), align=1)
        return length

    return instruction(build, types.int64, 3)


def _load(builder: Any, address: Any, offset: int) -> Any:
    place = builder.add(address, ir.Constant(WORD, offset))
    return builder.load(builder.inttoptr(place, _VECTOR.as_pointer()), align=1)


def folded(builder: Any, value: Any, further: Any, distance_bytes: int) -> Any:
    """``further``, so many bytes behind a vector, to which the products of the halves of its parts are added."""
    parts = value.type.count // 2
    byte = ir.IntType(8)
    kind = ir.FunctionType(value.type, [value.type, value.type, byte])
    get_function: Any = cgutils.get_or_insert_function
    multiply = get_function(builder.module, kind, "llvm.x86.pclmulqdq" + (f".{128 * parts}" if parts > 1 else ""))
    constants = ir.Constant(value.type, [*_powers(distance_bytes)] * parts)
    low = builder.call(multiply, [value, constants, ir.Constant(byte, 0x00)])
    high = builder.call(multiply, [value, constants, ir.Constant(byte, 0x11)])
    return builder.xor(builder.xor(low, high), further)


def _narrowed(builder: Any, vector: Any) -> Any:
    """A vector's parts, folded to one."""
    places = [ir.Constant(ir.VectorType(HALF_WORD, 2), [at, at + 1]) for at in range(0, 2 * _PARTS, 2)]
    left, *others = [builder.shuffle_vector(vector, vector, place) for place in places]
    for other in others:
        left = folded(builder, left, other, _PART_BYTES)
    return left


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
        state = np.uint32(ONES)
        if whole:
            fold(address + start, whole, rest.ctypes.data)
            state = np.uint32(0)
            for position in range(_PART_BYTES):
                state = table[(state ^ rest[position]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
        tail = carray(pointer(address + start + whole), (size - whole,), np.uint8)
        for position in range(size - whole):
            state = table[(state ^ tail[position]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
        found[number] = state ^ np.uint32(ONES)


def folded_checksums(data: memoryview, block_bytes: int) -> list[int]:
    """Of each block, without the GIL."""
    values = np.frombuffer(data, np.uint8)
    found = np.empty(-(-len(values) // block_bytes), dtype=np.uint32)
    rest = np.empty(_PART_BYTES, dtype=np.uint8)
    _checksums(values.ctypes.data, len(values), block_bytes, TABLE, rest, found)
    return [int(each) for each in found]
