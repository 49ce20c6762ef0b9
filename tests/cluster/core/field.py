"""Arithmetic in GF(2^8), byte by byte over 64-bit records: slow, small, and no code of the product."""

from __future__ import annotations

from functools import cache

BYTES = 8
POLYNOMIAL = 0x11D


def multiply(one: int, other: int) -> int:
    """Of two bytes."""
    product = 0
    while other:
        product ^= one if other & 1 else 0
        one = (one << 1) ^ (POLYNOMIAL if one & 0x80 else 0)
        other >>= 1
    return product


@cache
def power(parity: int, member: int) -> int:
    """The coefficient of a member in a parity: 1 in the first, 2 to its number in the second."""
    coefficient = 1
    for _ in range(parity * member):
        coefficient = multiply(coefficient, 2)
    return coefficient


@cache
def _table(coefficient: int) -> bytes:
    return bytes(multiply(coefficient, byte) for byte in range(256))


@cache
def _inverse(coefficient: int) -> int:
    return _table(coefficient).index(1)


def times(coefficient: int, record: int) -> int:
    """A record, multiplied."""
    if coefficient == 1:
        return record
    return int.from_bytes(record.to_bytes(BYTES, "little").translate(_table(coefficient)), "little")


def divide(record: int, coefficient: int) -> int:
    """A record, divided."""
    return times(_inverse(coefficient), record)
