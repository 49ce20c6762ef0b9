"""Reads, verifies and applies row records of local files in one call, without the GIL.

A restore of many small pieces would spend its time passing the GIL around. Here each thread takes reads from a shared
list until none is left: ``open`` and ``pread`` of the C library for all pieces of a read, which are adjacent in a file;
zlib's ``crc32``, ids and rows for each piece. A piece that fails a check is skipped and marked; the caller finds out
why.

The functions' addresses are arguments, so the compiled kernel can be cached for other processes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.checkpoint.restore.native_layout import COLUMN, PIECE
from holdfast.kernels.compiled import compiled

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


def _places(record: np.dtype[Any], *names: str) -> tuple[int, ...]:
    """Where fields lie in a record. The kernels know them by these numbers, as constants."""
    return tuple(int(record.fields[name][1]) for name in names) if record.fields else ()


_PATH, _OFFSET, _LENGTH = _places(PIECE, "path", "offset", "length")
_CHECKSUMS, _BLOCK_BYTES = _places(PIECE, "checksums", "block_bytes")
_IDS, _IDS_WIDTH, _FIRST_ROW, _ROWS = _places(PIECE, "ids", "ids_width", "first", "rows")
_COLUMNS, _COLUMN_COUNT = _places(PIECE, "columns", "column_count")
_SPAN, _IDS_COUNT, _SEGMENTS, _SEGMENT_COUNT = _places(PIECE, "span", "ids_count", "segments", "segment_count")
_NEWEST, _NEWEST_WIDTH, _NUMBER = _places(PIECE, "newest", "newest_width", "number")
_IDS_OUT, _MARKS = _places(PIECE, "ids_out", "marks")
_OUTCOME, _WRITTEN = _places(PIECE, "outcome", "written")
_AT, _WIDTH, _TARGET = _places(COLUMN, "offset", "width", "target")
_FIRST, _COUNT, _BUFFER = _places(_READ, "first", "count", "buffer")  # path, offset and length lie as in a piece
_PIECE_BYTES, _COLUMN_BYTES, _READ_BYTES = PIECE.itemsize, COLUMN.itemsize, _READ.itemsize
_GAP_BYTES = 16 * 2**10  # between two pieces: reading on takes less time than another read
_MOST_BYTES = 2**20  # of a read of several pieces: threads share the reads
_WORD = ir.IntType(64)


class _Functions(NamedTuple):
    open: int
    close: int
    pread: int
    crc32: int


def _instruction(build: Callable[..., Any], result: Any, count: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = build(builder, *arguments)
        return context.get_dummy_value() if value is None else value

    return result(*[types.int64] * count), generate


def _load(bits: int) -> Any:
    def build(builder: Any, address: Any) -> Any:
        kind = ir.IntType(bits)
        value = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)
        return value if bits == 64 else builder.zext(value, _WORD)

    return _instruction(build, types.int64, 1)


@intrinsic
def _load8_(typing: Any, address: Any) -> Any:
    return _load(8)


@intrinsic
def _load16_(typing: Any, address: Any) -> Any:
    return _load(16)


@intrinsic
def _load32_(typing: Any, address: Any) -> Any:
    return _load(32)


@intrinsic
def _load64_(typing: Any, address: Any) -> Any:
    return _load(64)


@intrinsic
def _store64_(typing: Any, address: Any, value: Any) -> Any:
    def build(builder: Any, address: Any, value: Any) -> None:
        builder.store(value, builder.inttoptr(address, _WORD.as_pointer()), align=1)

    return _instruction(build, types.void, 2)


@intrinsic
def _mark_(typing: Any, address: Any) -> Any:
    """Set a byte to 1."""

    def build(builder: Any, address: Any) -> None:
        kind = ir.IntType(8)
        builder.store(ir.Constant(kind, 1), builder.inttoptr(address, kind.as_pointer()), align=1)

    return _instruction(build, types.void, 1)


@intrinsic
def _move_line_(typing: Any, target: Any, source: Any) -> Any:
    """Copy 64 bytes, in the widest registers there are."""

    def build(builder: Any, target: Any, source: Any) -> None:
        line = ir.VectorType(_WORD, 8).as_pointer()
        value = builder.load(builder.inttoptr(source, line), align=1)
        builder.store(value, builder.inttoptr(target, line), align=1)

    return _instruction(build, types.void, 2)


@intrinsic
def _next_(typing: Any, address: Any) -> Any:
    """The next number of a counter that threads share."""

    def build(builder: Any, address: Any) -> Any:
        pointer = builder.inttoptr(address, _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_WORD, 1), "monotonic")

    return _instruction(build, types.int64, 1)


@intrinsic
def _open_(typing: Any, function: Any, path: Any, flags: Any) -> Any:
    def build(builder: Any, function: Any, path: Any, flags: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_WORD, ir.IntType(32)], var_arg=True)
        target = builder.inttoptr(function, kind.as_pointer())
        return builder.sext(builder.call(target, [path, builder.trunc(flags, ir.IntType(32))]), _WORD)

    return _instruction(build, types.int64, 3)


@intrinsic
def _close_(typing: Any, function: Any, handle: Any) -> Any:
    def build(builder: Any, function: Any, handle: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        target = builder.inttoptr(function, kind.as_pointer())
        return builder.sext(builder.call(target, [builder.trunc(handle, ir.IntType(32))]), _WORD)

    return _instruction(build, types.int64, 2)


@intrinsic
def _pread_(typing: Any, function: Any, handle: Any, into: Any, length: Any, offset: Any) -> Any:
    def build(builder: Any, function: Any, handle: Any, into: Any, length: Any, offset: Any) -> Any:
        kind = ir.FunctionType(_WORD, [ir.IntType(32), _WORD, _WORD, _WORD])
        target = builder.inttoptr(function, kind.as_pointer())
        return builder.call(target, [builder.trunc(handle, ir.IntType(32)), into, length, offset])

    return _instruction(build, types.int64, 5)


@intrinsic
def _crc32_(typing: Any, function: Any, data: Any, length: Any) -> Any:
    def build(builder: Any, function: Any, data: Any, length: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD, _WORD, ir.IntType(32)])
        target = builder.inttoptr(function, kind.as_pointer())
        return builder.call(target, [ir.Constant(_WORD, 0), data, builder.trunc(length, ir.IntType(32))])

    return _instruction(build, types.int64, 3)


# What numba calls is not what a type checker sees.
_load8, _load16, _load32, _load64 = (cast(Any, each) for each in (_load8_, _load16_, _load32_, _load64_))
_store64, _mark, _move_line = cast(Any, _store64_), cast(Any, _mark_), cast(Any, _move_line_)
_next, _pread, _crc32 = (cast(Any, each) for each in (_next_, _pread_, _crc32_))
_open, _close = cast(Any, _open_), cast(Any, _close_)
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC


@compiled(["boolean(int64, int64, int64, int64, int64)"])
def _is_read(read: int, memory: int, open_: int, close: int, pread: int) -> bool:
    """Whether all bytes of a read could be had."""
    handle = _open(open_, _load64(read + _PATH), _OPEN_FLAGS)
    if handle < 0:
        return False
    length, done, got = _load64(read + _LENGTH), 0, 1
    while done < length and got > 0:
        got = _pread(pread, handle, memory + done, length - done, _load64(read + _OFFSET) + done)
        done += got
    _close(close, handle)
    return got > 0


@compiled(["boolean(int64, int64, int64)"])
def _is_right(piece: int, memory: int, crc32: int) -> bool:
    """Compare the blocks of a piece with their checksums."""
    length = _load64(piece + _LENGTH)
    checksum, block_bytes = _load64(piece + _CHECKSUMS), _load64(piece + _BLOCK_BYTES)
    for start in range(0, length, block_bytes):
        if _crc32(crc32, memory + start, min(block_bytes, length - start)) != _load32(checksum):
            return False
        checksum += 4
    return True


@compiled(["boolean(int64, int64)"])
def _has_rows(piece: int, memory: int) -> bool:
    """Whether the ids of a piece ascend, in each segment, and go from the first row of its chunk to the last."""
    ids, width = memory + _load64(piece + _IDS), _load64(piece + _IDS_WIDTH)
    span, count = _load64(piece + _SPAN), _load64(piece + _IDS_COUNT)
    starts, left = _load64(piece + _SEGMENTS), _load64(piece + _SEGMENT_COUNT)
    before, low, high, start = -1, span, 0, _load64(starts)
    for row in range(count):
        offset = _load32(ids + 4 * row) if width == 4 else _load64(ids + 8 * row)
        if row == start:
            before, left, starts = -1, left - 1, starts + 8
            start = _load64(starts) if left > 0 else count
        if offset <= before or offset > span:
            return False
        before = offset
        low = min(low, offset)
        high = max(high, offset)
    return bool(low == 0 and high == span)


@compiled(["int64(int64, int64)"])
def _apply(piece: int, memory: int) -> int:
    """Write the rows of a piece to their places; how many of them, without those that are left out."""
    ids, width, first = memory + _load64(piece + _IDS), _load64(piece + _IDS_WIDTH), _load64(piece + _FIRST_ROW)
    rows, columns, count = _load64(piece + _ROWS), _load64(piece + _COLUMNS), _load64(piece + _COLUMN_COUNT)
    newest, newest_width = _load64(piece + _NEWEST), _load64(piece + _NEWEST_WIDTH)
    number, ids_out, marks, written = _load64(piece + _NUMBER), _load64(piece + _IDS_OUT), _load64(piece + _MARKS), 0
    for row in range(rows):
        wanted = first + (_load32(ids + 4 * row) if width == 4 else _load64(ids + 8 * row))
        if ids_out != 0:
            _store64(ids_out + 8 * row, wanted)
        if newest != 0:
            at = newest + wanted * newest_width
            found = _load8(at) if newest_width == 1 else _load16(at) if newest_width == 2 else _load32(at)
            if found > number:
                continue
        written += 1
        if marks != 0:
            _mark(marks + wanted)
        for column in range(count):
            entry = columns + _COLUMN_BYTES * column
            size = _load64(entry + _WIDTH)
            source = memory + _load64(entry + _AT) + row * size
            target = _load64(entry + _TARGET) + wanted * size
            lines = size // 64 * 64
            for offset in range(0, lines, 64):
                _move_line(target + offset, source + offset)
            for offset in range(lines, size, 8):
                _store64(target + offset, _load64(source + offset))
    return written


@compiled(["void(int64, int64, int64, int64, int64, int64, int64, int64)"])
def _work(turn: int, reads: int, pieces: int, memory: int, open_: int, close: int, pread: int, crc32: int) -> None:
    while True:
        number = _next(turn)
        if number >= _load64(turn + 8):
            return
        read = reads + _READ_BYTES * number
        first, count, buffer = _load64(read + _FIRST), _load64(read + _COUNT), _load64(read + _BUFFER)
        known = _load64(read + _LENGTH) == 0  # its bytes were read and found right before
        if buffer == 0:
            buffer = memory
        is_read = known or _is_read(read, buffer, open_, close, pread)
        for each in range(first, first + count):
            piece = pieces + _PIECE_BYTES * each
            data = buffer + _load64(piece + _OFFSET) - _load64(read + _OFFSET)
            if not known and not (is_read and _is_right(piece, data, crc32)):
                _store64(piece + _OUTCOME, SPOILT)
            elif known or _has_rows(piece, data):
                _store64(piece + _WRITTEN, _apply(piece, data))
                _store64(piece + _OUTCOME, DONE)


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
        functions: _Functions,
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
        """Memory of its own for every read, if that is not too much."""
        stops = np.cumsum(self._reads["length"])
        if not len(stops) or int(stops[-1]) > hold:
            return None
        memory = np.empty(int(stops[-1]), dtype=np.uint8)
        self._reads["buffer"] = memory.ctypes.data + stops - self._reads["length"]
        return memory

    def choose(self, group: int) -> int:
        """This group's pieces are to be worked on next; in how many reads."""
        found = np.searchsorted(self._groups[self._reads["first"]], [group, group + 1])
        self._turn[:] = found
        return int(found[1] - found[0])

    def work(self, memory: NDArray[np.uint8]) -> None:
        """Take chosen reads until none is left, into ``memory`` (at least ``memory_bytes`` of it)."""
        arrays = (self._turn, self._reads, self._pieces, memory)
        cast(Any, _work)(*(array.ctypes.data for array in arrays), *self._functions)

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
    arrays = (pieces, np.ascontiguousarray(groups), known, reads)
    return reads[: _join(len(pieces), *(array.ctypes.data for array in arrays))]


@compiled(["int64(int64, int64, int64, int64, int64)"])
def _join(number_of_pieces: int, pieces: int, groups: int, known: int, reads: int) -> int:
    """Fill in the reads; how many these are. ``known`` are addresses of bytes that need not be read, or 0."""
    count, stop, before, group, joinable = 0, 0, 0, 0, False
    for number in range(number_of_pieces):
        piece, read = pieces + _PIECE_BYTES * number, reads + _READ_BYTES * (count - 1)
        path, offset, length = _load64(piece + _PATH), _load64(piece + _OFFSET), _load64(piece + _LENGTH)
        held, own = _load64(known + 8 * number), _load64(groups + 8 * number)
        near = joinable and held == 0 and own == group and path == before and 0 <= offset - stop <= _GAP_BYTES
        if near and offset + length - _load64(read + _OFFSET) <= _MOST_BYTES:
            _store64(read + _LENGTH, offset + length - _load64(read + _OFFSET))
            _store64(read + _COUNT, _load64(read + _COUNT) + 1)
        else:
            read += _READ_BYTES
            _store64(read + _PATH, path)
            _store64(read + _OFFSET, offset)
            _store64(read + _LENGTH, 0 if held != 0 else length)
            _store64(read + _FIRST, number)
            _store64(read + _COUNT, 1)
            _store64(read + _BUFFER, held)
            count += 1
        stop, before, group, joinable = offset + length, path, own, held == 0
    return count


@cache
def functions() -> _Functions | None:
    """Where they are; None where they cannot be found."""
    try:
        library = ctypes.CDLL(None)
        found = (library.open64, library.close, library.pread64, ctypes.CDLL("libz.so.1").crc32)
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in found]
    return _Functions(*addresses) if all(addresses) else None  # type: ignore[arg-type]
