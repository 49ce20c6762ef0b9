"""Arithmetic in GF(2^8) over the bytes of records, in NumPy: what the faster kernels must equal.

Addition is XOR. A product is taken modulo x^8 + x^4 + x^3 + x^2 + 1, in which x, the number 2, generates every element
but 0. A word of 32 bits is four elements that do not touch each other, so the order of bytes does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.runs import Runs

Words = NDArray[np.uint32]
Ids = NDArray[np.int64]

POLYNOMIAL = 0x11D
GENERATOR = 2


def add(target: Words, rows: Ids | None, records: Words, coefficient: int) -> None:
    """``target[rows[n]] ^= coefficient · records[n]``, one after another: a row may stand there more than once.

    Without rows: ``target ^= coefficient · records``.
    """
    if rows is None:
        target ^= times(records, coefficient)
    else:
        np.bitwise_xor.at(target, rows, times(records, coefficient))


def add_runs(target: Words, runs: Runs, records: Sequence[Words], coefficient: int) -> None:
    """The same for the rows of some runs, one run after another, and for several records of each row."""
    for each in records:
        add(target, runs.rows(), each, coefficient)


def add_from(target: Words, source: Words, runs: Runs, records: Sequence[Words]) -> None:
    """``target ^= source[rows]``, for the rows of some runs, one run after another, and all records."""
    target ^= source[runs.rows()]
    for each in records:
        target ^= each


def encode(members: Words, parities: Words) -> None:
    """Write parity ``p`` of the members: the sum of ``GENERATOR^(p·i)`` times member ``i``."""
    for number, parity in enumerate(parities):
        parity[:] = 0
        coefficient = 1
        for member in members:
            add(parity, None, member, coefficient)
            for _ in range(number):
                coefficient = double(coefficient)


def times(records: Words, coefficient: int) -> Words:
    """Every byte's product with one element."""
    products = np.array([multiply(coefficient, each) for each in range(256)], np.uint8)
    return products[np.ascontiguousarray(records).view(np.uint8)].view(np.uint32)


def multiply(first: int, second: int) -> int:
    """The product of two elements."""
    product = 0
    for bit in reversed(range(8)):
        product = double(product) ^ (first if second >> bit & 1 else 0)
    return product


def double(element: int) -> int:
    """The product with 2."""
    return element << 1 ^ (POLYNOMIAL if element & 0x80 else 0)
