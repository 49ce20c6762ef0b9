"""Arithmetic in GF(2^8) over the bytes of records, in Numba: without the GIL. Importing this module compiles it.

Four bytes of a word are doubled at once in seven plain operations, which a compiler turns into vectors; a product is
doubling and adding, from the coefficient's highest bit down. Coefficients of the first few members are small, so that
three doublings do for most of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.compiled import compiled
from holdfast.kernels.galois.reference import POLYNOMIAL, Ids, Words
from holdfast.kernels.memory import LINE_BYTES, prefetch_line
from holdfast.kernels.runs import Runs

_AHEAD = 8  # rows between a row's prefetch and its sum
_TOGETHER = 4  # records that are added in one pass
_TILE = 2048  # words of a parity that stay in the cache while all members are added

_HIGHEST = np.uint32(0x80808080)  # the bit of each byte that doubling carries out of it
_LOWER = np.uint32(0x7F7F7F7F)
_CARRIED = np.uint32((POLYNOMIAL & 0xFF) * 0x01010101)  # what it then comes back as
_ONE, _SEVEN = np.uint32(1), np.uint32(7)
_NO_IDS = np.empty(0, np.int64)
_NO_RECORDS = np.empty((0, 0), np.uint32)

_INT, _WORD = types.int64, types.uint32
_IDS = types.Array(types.int64, 1, "C", readonly=True)  # or writable
_TARGET, _RECORDS = types.Array(types.uint32, 2, "C"), types.Array(types.uint32, 2, "C", readonly=True)


@compiled([_WORD(_WORD)])
def _double(word: np.uint32) -> np.uint32:
    """Each of four bytes: those that lose their highest bit have the polynomial's remainder added."""
    carried = word & _HIGHEST
    return ((word & _LOWER) << _ONE) ^ ((carried - (carried >> _SEVEN)) & _CARRIED)


@compiled([_WORD(_INT, _INT)])
def _mask(coefficient: int, bit: int) -> np.uint32:
    """All bits where the coefficient has this one."""
    return np.uint32(-(coefficient >> bit & 1))


@compiled([types.void(_TARGET, _IDS, _RECORDS, _INT)])
def _add(target: Words, rows: Ids, records: Words, coefficient: int) -> None:
    """Without rows: all, in their order."""
    m0, m1, m2, m3 = (_mask(coefficient, 0), _mask(coefficient, 1), _mask(coefficient, 2), _mask(coefficient, 3))
    m4, m5, m6, m7 = (_mask(coefficient, 4), _mask(coefficient, 5), _mask(coefficient, 6), _mask(coefficient, 7))
    address, width, indexed = target.ctypes.data, target.shape[1] * 4, rows.shape[0] > 0
    for number in range(records.shape[0]):
        row = number
        if indexed:
            ahead = address + rows[min(number + _AHEAD, rows.shape[0] - 1)] * width
            for offset in range(0, width, LINE_BYTES):
                prefetch_line(ahead + offset)
            row = max(rows[number], 0)  # no index counts from the end
        if coefficient == 1:
            for i in range(records.shape[1]):
                target[row, i] ^= records[number, i]
        elif coefficient < 16:
            for i in range(records.shape[1]):
                x = records[number, i]
                y = _double(x & m3) ^ (x & m2)
                y = _double(y) ^ (x & m1)
                target[row, i] ^= _double(y) ^ (x & m0)
        else:
            for i in range(records.shape[1]):
                x = records[number, i]
                y = _double(x & m7) ^ (x & m6)
                y = _double(y) ^ (x & m5)
                y = _double(y) ^ (x & m4)
                y = _double(y) ^ (x & m3)
                y = _double(y) ^ (x & m2)
                y = _double(y) ^ (x & m1)
                target[row, i] ^= _double(y) ^ (x & m0)


@compiled([types.void(_TARGET, _RECORDS, _RECORDS, _RECORDS, _RECORDS, _INT, _IDS, _IDS, types.boolean)])
def _add_several(
    target: Words, a: Words, b: Words, c: Words, d: Words, count: int, starts: Ids, counts: Ids, into_runs: bool
) -> None:
    """Add some of four. Runs are of the target, or else of the first that is added; the others are in their order."""
    width, at = target.shape[1], 0
    sums, first = target.reshape(target.size), a.reshape(a.size)
    second, third, fourth = b.reshape(b.size), c.reshape(c.size), d.reshape(d.size)
    for number in range(starts.shape[0]):
        begin, size = starts[number] * width, counts[number] * width
        own, given = (begin, at) if into_runs else (at, begin)
        t, w = sums[own : own + size], first[given : given + size]
        x, y, z = second[at : at + size], third[at : at + size], fourth[at : at + size]
        if count == 1:
            for i in range(size):
                t[i] ^= w[i]
        elif count == 2:
            for i in range(size):
                t[i] ^= w[i] ^ x[i]
        elif count == 3:
            for i in range(size):
                t[i] ^= w[i] ^ x[i] ^ y[i]
        else:
            for i in range(size):
                t[i] ^= w[i] ^ x[i] ^ y[i] ^ z[i]
        at += size


@compiled([types.void(_RECORDS, _TARGET)])
def _encode(members: Words, parities: Words) -> None:
    """By Horner's rule, from the last member to the first: one doubling for each."""
    last = members.shape[0] - 1
    for begin in range(0, members.shape[1], _TILE):
        for number in range(parities.shape[0]):
            parity = parities[number, begin : begin + _TILE]
            parity[:] = members[last, begin : begin + _TILE]
            for member in range(last - 1, -1, -1):
                values = members[member, begin : begin + _TILE]
                if number == 0:
                    for i in range(parity.shape[0]):
                        parity[i] ^= values[i]
                else:
                    for i in range(parity.shape[0]):
                        parity[i] = _double(parity[i]) ^ values[i]


def add(target: Words, rows: Ids | None, records: Words, coefficient: int) -> None:
    """``target[rows[n]] ^= coefficient · records[n]``, one after another: a row may stand there more than once.

    Without rows: ``target ^= coefficient · records``.
    """
    if rows is None or len(rows):
        _add(target, _NO_IDS if rows is None else rows, records, coefficient)


def add_runs(target: Words, runs: Runs, records: Sequence[Words], coefficient: int) -> None:
    """The same for the rows of some runs, one run after another, and for several records of each row."""
    if coefficient == 1:
        for several in _by_four(records):
            _add_several(target, *_four(several), len(several), runs.starts, runs.counts, True)
    else:
        for each in records:
            add(target, runs.rows(), each, coefficient)


def add_from(target: Words, source: Words, runs: Runs, records: Sequence[Words]) -> None:
    """``target ^= source[rows]``, for the rows of some runs, one run after another, and all records."""
    few, rest = list(records[: _TOGETHER - 1]), records[_TOGETHER - 1 :]
    _add_several(target, *_four([source, *few]), 1 + len(few), runs.starts, runs.counts, False)
    add_runs(target, Runs.all(len(target)), rest, 1)


def _by_four(records: Sequence[Words]) -> Iterator[Sequence[Words]]:
    """Some at a time: a sum is read and written once for all that are added together."""
    return (records[first : first + _TOGETHER] for first in range(0, len(records), _TOGETHER))


def _four(records: Sequence[Words]) -> tuple[Words, Words, Words, Words]:
    """As many as the kernel takes; of those that are none, it looks at nothing."""
    a, b, c, d = (*records, _NO_RECORDS, _NO_RECORDS, _NO_RECORDS)[:_TOGETHER]
    return a, b, c, d


def encode(members: Words, parities: Words) -> None:
    """Write parity ``p`` of the members: the sum of ``GENERATOR^(p·i)`` times member ``i``, for ``p`` of 0 and 1."""
    _encode(members, parities)
