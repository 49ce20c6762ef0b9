"""Reads, verifies and applies row records of local files in one call, without the GIL.

A restore of many small pieces would spend its time passing the GIL around. Here each thread takes reads from a shared
list until none is left: ``open`` and ``pread`` of the C library for all pieces of a read, which are adjacent in a file;
zlib's ``crc32``, ids and rows for each piece. A piece that fails a check is skipped and marked; the caller finds out
why.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.checkpoint.restore.native_calls import (
    Functions,
    call_close,
    call_crc32,
    call_open,
    call_pread,
)
from holdfast.checkpoint.restore.native_calls import functions as functions
from holdfast.checkpoint.restore.native_layout import COLUMN, PIECE
from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import add_atomically, pointer

DONE, SPOILT = 1, 2  # outcomes of a piece; SPOILT: bytes could not be had, or are not those that were written
_READ = np.dtype(
    [
        ("path", "<i8"),
        ("offset", "<i8"),
        ("length", "<i8"),  # 0: its bytes were read and found right before
        ("first", "<i8"),  # its first piece
        ("count", "<i8"),  # of its pieces
        ("buffer", "<i8"),  # where its bytes go, or are; 0: into whatever memory the thread has
    ]
)


_GAP_BYTES = 16 * 2**10  # between two pieces: reading on takes less time than another read
_MOST_BYTES = 2**20  # of a read of several pieces: threads share the reads
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC

_WORD = types.int64
_PIECE, _READ_KIND = numba.from_dtype(PIECE), numba.from_dtype(_READ)
_PIECES, _READS = types.Array(_PIECE, 1, "C"), types.Array(_READ_KIND, 1, "C")
_WORDS = types.Array(_WORD, 1, "C")


@compiled([types.boolean(_READ_KIND, _WORD, _WORD, _WORD, _WORD)])
def _is_read(read: Any, memory: int, open_: int, close: int, pread: int) -> bool:
    """Whether all bytes of a read could be had."""
    handle = call_open(open_, read.path, _OPEN_FLAGS)
    if handle < 0:
        return False
    done, got = 0, 1
    while done < read.length and got > 0:
        got = call_pread(pread, handle, memory + done, read.length - done, read.offset + done)
        done += got
    call_close(close, handle)
    return got > 0


@compiled([types.boolean(_PIECE, _WORD, _WORD)])
def _is_right(piece: Any, memory: int, crc32: int) -> bool:
    """Compare the blocks of a piece with their checksums."""
    checksums = carray(pointer(piece.checksums), -(-piece.length // piece.block_bytes), np.uint32)
    for block in range(len(checksums)):
        start = block * piece.block_bytes
        if call_crc32(crc32, 0, memory + start, min(piece.block_bytes, piece.length - start)) != checksums[block]:
            return False
    return True


@compiled([types.boolean(_PIECE, _WORD)])
def _has_rows(piece: Any, memory: int) -> bool:
    """Whether the ids of a piece ascend, in each segment, and go from the first row of its chunk to the last."""
    ids, count, span = memory + piece.ids, piece.ids_count, piece.span
    narrow, wide = carray(pointer(ids), count, np.uint32), carray(pointer(ids), count, np.int64)
    starts, is_narrow = carray(pointer(piece.segments), piece.segment_count, np.int64), piece.ids_width == 4
    before, low, high, segment = -1, span, 0, 0
    for row in range(count):
        offset: int = np.int64(narrow[row]) if is_narrow else wide[row]  # type: ignore[assignment]
        if segment < len(starts) and row == starts[segment]:
            before, segment = -1, segment + 1
        if offset <= before or offset > span:
            return False
        before = offset
        low = min(low, offset)
        high = max(high, offset)
    return bool(low == 0 and high == span)


@compiled([types.boolean(_PIECE, _WORD)])
def _is_replaced(piece: Any, row: int) -> bool:
    """Whether a later generation has the row."""
    if piece.newest_width == 1:
        newest = np.int64(carray(pointer(piece.newest), row + 1, np.uint8)[row])
    elif piece.newest_width == 2:
        newest = np.int64(carray(pointer(piece.newest), row + 1, np.uint16)[row])
    else:
        newest = np.int64(carray(pointer(piece.newest), row + 1, np.uint32)[row])
    return bool(newest > piece.number)


@compiled([_WORD(_PIECE, _WORD)])
def _apply(piece: Any, memory: int) -> int:
    """Write the rows of a piece to their places; how many of them, without those that are left out."""
    ids, rows, first, written = memory + piece.ids, piece.rows, piece.first, 0
    narrow, wide = carray(pointer(ids), rows, np.uint32), carray(pointer(ids), rows, np.int64)
    columns, is_narrow = carray(pointer(piece.columns), piece.column_count, COLUMN), piece.ids_width == 4
    ids_out, newest, marks = piece.ids_out, piece.newest, piece.marks
    low, high = piece.low, piece.high
    for row in range(rows):
        wanted = first + (np.int64(narrow[row]) if is_narrow else wide[row])
        if ids_out != 0:
            carray(pointer(ids_out), rows, np.int64)[row] = wanted
        if wanted < low or wanted >= high or (newest != 0 and _is_replaced(piece, wanted)):
            continue
        written += 1
        if marks != 0:
            carray(pointer(marks), wanted + 1, np.uint8)[wanted] = 1
        for number in range(len(columns)):
            size = columns[number].width
            source = carray(pointer(memory + columns[number].offset + row * size), size // 8, np.int64)
            target = carray(pointer(columns[number].target + wanted * size), size // 8, np.int64)
            for word in range(size // 8):
                target[word] = source[word]
    return written


@compiled([types.void(_WORDS, _READS, _PIECES, _WORD, _WORD, _WORD, _WORD, _WORD)])
def _work(turn: Any, reads: Any, pieces: Any, memory: int, open_: int, close: int, pread: int, crc32: int) -> None:
    while True:
        number = add_atomically(turn.ctypes.data, 1)
        if number >= turn[1]:
            return
        read = reads[number]
        known = read.length == 0  # its bytes were read and found right before
        buffer = read.buffer if read.buffer != 0 else memory
        is_read = known or _is_read(read, buffer, open_, close, pread)
        for each in range(read.first, read.first + read.count):
            data = buffer + pieces[each].offset - read.offset
            if not known and not (is_read and _is_right(pieces[each], data, crc32)):
                pieces[each].outcome = SPOILT
            elif known or _has_rows(pieces[each], data):
                pieces[each].written = _apply(pieces[each], data)
                pieces[each].outcome = DONE


class Held(NamedTuple):
    """Bytes of pieces in memory, read and found right."""

    memory: NDArray[np.uint8]
    addresses: dict[tuple[int, int, int], int]  # by path, offset and length


class Pieces:
    """Records of PIECE that several threads work on at once.

    ``groups`` are numbers that do not fall from one to the next. The pieces of a group are worked on together, in any
    order; within each they should be in the order of their files and of their places there. What is ``held`` is not
    read again; ``hold``: keep what is read, if it is not more than that many bytes.
    """

    def __init__(
        self,
        pieces: NDArray[Any],
        groups: NDArray[np.int64],
        functions: Functions,
        *,
        held: Held | None = None,
        hold: int = 0,
    ) -> None:
        self._pieces = np.ascontiguousarray(pieces)
        self._reads = _reads(self._pieces, groups, held.addresses if held else {})
        self._groups = groups
        self._functions = functions
        self._turn = np.zeros(2, dtype=np.int64)
        self._kept = held, self._buffers(hold)
        self.memory_bytes = int(self._reads["length"][self._reads["buffer"] == 0].max(initial=0))

    def held(self) -> Held | None:
        """What was kept, of pieces that were as they should be."""
        buffers = self._kept[1]
        if buffers is None:
            return None
        reads, done = np.repeat(self._reads, self._reads["count"]), self.done()
        addresses = (reads["buffer"] + self._pieces["offset"] - reads["offset"])[done]
        return Held(buffers, dict(zip(_keys(self._pieces[done]), addresses.tolist(), strict=True)))

    def _buffers(self, hold: int) -> NDArray[np.uint8] | None:
        """Memory of its own for every read whose bytes are not held already, if that is not too much."""
        own, stops = self._reads["buffer"] == 0, np.cumsum(self._reads["length"])
        if not own.any() or int(stops[-1]) > hold:
            return None
        memory = np.empty(int(stops[-1]), dtype=np.uint8)
        self._reads["buffer"][own] = (memory.ctypes.data + stops - self._reads["length"])[own]
        return memory

    def choose(self, group: int) -> int:
        """This group's pieces are to be worked on next; in how many reads."""
        found = np.searchsorted(self._groups[self._reads["first"]], [group, group + 1])
        self._turn[:] = found
        return int(found[1] - found[0])

    def work(self, memory: NDArray[np.uint8]) -> None:
        """Take chosen reads until none is left, into ``memory`` (at least ``memory_bytes`` of it)."""
        _work(self._turn, self._reads, self._pieces, memory.ctypes.data, *self._functions)

    def done(self) -> NDArray[np.bool_]:
        """Which pieces were as they should be, of those worked on so far."""
        done: NDArray[np.bool_] = self._pieces["outcome"] == DONE
        return done

    def written(self) -> NDArray[np.int64]:
        """How many rows of each piece were written so far."""
        written: NDArray[np.int64] = self._pieces["written"]
        return written

    def spoilt(self) -> NDArray[np.bool_]:
        """Which pieces could not be read, or were read and are not what was written; of those worked on so far."""
        spoilt: NDArray[np.bool_] = self._pieces["outcome"] == SPOILT
        return spoilt


def _keys(pieces: NDArray[Any]) -> list[tuple[int, int, int]]:
    """What tells one piece's bytes from another's."""
    path, offset, length = (pieces[name].tolist() for name in ("path", "offset", "length"))
    return list(zip(path, offset, length, strict=True))


def _reads(pieces: NDArray[Any], groups: NDArray[np.int64], held: dict[tuple[int, int, int], int]) -> NDArray[Any]:
    """The reads of some pieces: those of a group that lie near each other in a file are read at once."""
    known = np.zeros(len(pieces), dtype=np.int64)
    if held:
        known[:] = [held.get(key, 0) for key in _keys(pieces)]
    reads = np.zeros(len(pieces), dtype=_READ)
    return reads[: _join(pieces, np.ascontiguousarray(groups), known, reads)]


@compiled([_WORD(_PIECES, _WORDS, _WORDS, _READS)])
def _join(pieces: Any, groups: Any, known: Any, reads: Any) -> int:
    """Fill in the reads; how many these are. ``known`` are addresses of bytes that need not be read, or 0."""
    count, stop, before, group, joinable = 0, 0, 0, 0, False
    for number in range(len(pieces)):
        path, offset, length = pieces[number].path, pieces[number].offset, pieces[number].length
        held, own, read = known[number], groups[number], reads[max(count - 1, 0)]
        near = joinable and held == 0 and own == group and path == before and 0 <= offset - stop <= _GAP_BYTES
        if near and offset + length - read.offset <= _MOST_BYTES:
            read.length = offset + length - read.offset
            read.count += 1
        else:
            read = reads[count]
            read.path, read.offset, read.length = path, offset, 0 if held != 0 else length
            read.first, read.count, read.buffer = number, 1, held
            count += 1
        stop, before, group, joinable = offset + length, path, own, held == 0
    return count
