"""Lists rows, and gathers what goes with their records, for all tables in a few launches of Triton kernels.

A launch costs the host some 30 us, whatever it does: so none is for one table. Where a table has fewer rows than the
largest, programs end at once. Every kernel gets lines of ``descriptors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from holdfast.kernels.bounded_rows.descriptors import LINE, EncodedLine, ListedLine, lines_of


def _place(line: type[ListedLine | EncodedLine], field: str) -> tl.constexpr:
    return tl.constexpr(line._fields.index(field))


_LINE = tl.constexpr(LINE)
# Where each number is in the line of a table, and in that of a column.
_T_SETS = _place(ListedLine, "first_set")
_T_START = _place(ListedLine, "start")
_T_STOP = _place(ListedLine, "stop")
_T_BOUND = _place(ListedLine, "bound")
_T_IDS = _place(ListedLine, "ids")
_T_FRAME_IDS = _place(ListedLine, "frame_ids")
_T_ID_BYTES = _place(ListedLine, "id_bytes")
_T_CHUNK_ROWS = _place(ListedLine, "chunk_rows")
_T_CHUNKS = _place(ListedLine, "chunks")
_T_TALLY = _place(ListedLine, "tally")
_C_ESCAPED = _place(EncodedLine, "escaped")
_C_BOUND = _place(EncodedLine, "bound")
_C_TOTAL = _place(EncodedLine, "total")
_C_CHUNK_ROWS = _place(EncodedLine, "chunk_rows")
_C_CHUNKS = _place(EncodedLine, "chunks")
_C_COUNTS = _place(EncodedLine, "counts")
_C_PLACES = _place(EncodedLine, "places")
_C_ROOM = _place(EncodedLine, "room")
_C_IDS = _place(EncodedLine, "ids")
_C_START = _place(EncodedLine, "start")
_C_SOURCE = _place(EncodedLine, "source")
_C_WORDS = _place(EncodedLine, "words")
_C_ESCAPE_ROWS = _place(EncodedLine, "escape_rows")
_C_SAMPLE_ROWS = _place(EncodedLine, "sample_rows")
_C_SAMPLE = _place(EncodedLine, "sample")

_WORD_BITS = 32
_WORDS = 128  # of a program that lists: 4096 rows
_IDS = 1024  # of a program that cuts ids into chunks
_ESCAPE_WORDS = 32  # of a chunk, looked at together
_CHUNKS = 256  # whose counts are added up together
_ROWS, _COLUMNS = 16, 64  # copied together


def list_rows(lines: Sequence[ListedLine], there: Tensor) -> None:
    """List the rows of tables, cut their ids into chunks, and begin their tallies; ``there`` are the same lines."""
    if not lines:
        return
    tables = len(lines)
    programs = max(1, triton.cdiv(max(line.stop for line in lines), _WORDS * _WORD_BITS))
    counts = torch.empty(tables, programs, dtype=torch.int64, device=there.device)
    with _on_device_of(there):
        _count[(programs, tables)](counts, there, programs, words=_WORDS, bits=_WORD_BITS)
        ends = counts.cumsum(1)
        _list[(programs, tables)](ends, counts, there, programs, words=_WORDS, bits=_WORD_BITS)
        longest = max(line.chunks * line.chunk_rows for line in lines)
        _cut[(triton.cdiv(longest, _IDS), tables)](there, length=_IDS)


def gather_unencoded(lines: Sequence[EncodedLine], there: Tensor) -> None:
    """Count and copy the rows that no record holds, and copy the sampled ones; ``there`` are the same lines."""
    if not lines:
        return
    columns = len(lines)
    with _on_device_of(there):
        grid = (max(line.chunks for line in lines), columns)
        _count_escapes[grid](there, words=_ESCAPE_WORDS, bits=_WORD_BITS)
        _list_escapes[grid](there, words=_ESCAPE_WORDS, bits=_WORD_BITS, together=_CHUNKS)
        most = max(line.room + line.chunks * line.sample for line in lines)
        _copy[(triton.cdiv(most, _ROWS), columns)](there, together=_CHUNKS, rows=_ROWS, columns=_COLUMNS)


def warm_up(device: torch.device) -> None:
    """Compile or load the kernels now, so that no save waits for it."""
    memory = torch.zeros(64, dtype=torch.int64, device=device)
    address = memory.data_ptr()
    listed = ListedLine(
        first_set=address, second_set=0, third_set=0, start=0, stop=64, bound=1, ids=address + 64,
        frame_ids=address + 128, id_bytes=4, chunk_rows=1, chunks=1, tally=address + 192,
    )  # fmt: skip
    list_rows([listed], torch.tensor(lines_of([listed]), device=device))
    encoded = EncodedLine(
        escaped=address, bound=1, total=0, chunk_rows=1, chunks=1, counts=address + 64, places=address + 128, room=1,
        ids=0, start=0, source=address + 192, words=1, escape_rows=address + 256, sample_rows=address + 320, sample=1,
    )  # fmt: skip
    gather_unencoded([encoded], torch.tensor(lines_of([encoded]), device=device))


# Triton reads annotations as code of the kernel: only its own may stand there.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _numbers(address):  # type: ignore[no-untyped-def]
    """Where an address points to: 64-bit integers."""
    return address.to(tl.pointer_type(tl.int64))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _words(address):  # type: ignore[no-untyped-def]
    """Where an address points to: 32-bit words."""
    return address.to(tl.pointer_type(tl.int32))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _flags(own, words: tl.constexpr, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows of a program, a word of them in each line, and which of them are in a set of the table."""
    start, stop = tl.load(own + _T_START), tl.load(own + _T_STOP)
    word = tl.program_id(0).to(tl.int64) * words + tl.arange(0, words)
    lane = tl.arange(0, bits)
    row = word[:, None] * bits + lane[None, :]
    pattern = tl.zeros([words], dtype=tl.int32)
    for number in tl.static_range(3):
        address = tl.load(own + _T_SETS + number)
        pattern = pattern | tl.load(_words(address) + word, mask=(word * bits < stop) & (address != 0), other=0)
    inside = (row >= start) & (row < stop)
    return row, ((pattern[:, None] >> lane[None, :]) & 1) * inside.to(tl.int32)


@triton.jit(do_not_specialize=["programs"])  # type: ignore[untyped-decorator, unused-ignore]
def _count(counts, tables, programs, words: tl.constexpr, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    table = tl.program_id(1).to(tl.int64)
    _, flags = _flags(tables + table * _LINE, words, bits)
    found = tl.sum(tl.sum(flags, axis=1), axis=0).to(tl.int64)
    tl.store(counts + table * programs + tl.program_id(0), found)


@triton.jit(do_not_specialize=["programs"])  # type: ignore[untyped-decorator, unused-ignore]
def _list(ends, counts, tables, programs, words: tl.constexpr, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    table, program = tl.program_id(1).to(tl.int64), tl.program_id(0)
    own, at = tables + table * _LINE, table * programs + program
    end = tl.load(ends + at)
    if program == programs - 1:
        known = tl.load(own + _T_SETS) == 0  # no set: the ids are listed already
        tl.store(
            _numbers(tl.load(own + _T_TALLY)), tl.where(known, tl.load(own + _T_BOUND), end)
        )  # how many there are in all
    here = tl.load(counts + at)
    if here == 0:
        return
    row, flags = _flags(own, words, bits)
    in_word = tl.sum(flags, axis=1)
    earlier = tl.cumsum(in_word, axis=0) - in_word
    place = end - here + (earlier[:, None] + tl.cumsum(flags, axis=1) - 1).to(tl.int64)
    tl.store(_numbers(tl.load(own + _T_IDS)) + place, row, mask=(flags != 0) & (place < tl.load(own + _T_BOUND)))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _cut(tables, length: tl.constexpr):  # type: ignore[no-untyped-def]
    own = tables + tl.program_id(1).to(tl.int64) * _LINE
    bound, size, chunks = tl.load(own + _T_BOUND), tl.load(own + _T_CHUNK_ROWS), tl.load(own + _T_CHUNKS)
    position = tl.program_id(0).to(tl.int64) * length + tl.arange(0, length)
    ids, tally = _numbers(tl.load(own + _T_IDS)), _numbers(tl.load(own + _T_TALLY))
    total = tl.minimum(tl.load(tally), bound)
    counts, chunk = position < total, position // size
    row = tl.load(ids + position, mask=counts, other=0)
    first = tl.load(ids + chunk * size, mask=counts, other=0)
    target = tl.load(own + _T_FRAME_IDS)
    if tl.load(own + _T_ID_BYTES) == 4:
        tl.store(_words(target) + position, (row - first).to(tl.int32), mask=counts)
    else:
        tl.store(_numbers(target) + position, row - first, mask=counts)
    tl.store(tally + 1 + chunk, row, mask=counts & (position == chunk * size))
    last = tl.minimum((chunk + 1) * size, total) - 1
    tl.store(tally + 1 + chunks + chunk, row, mask=counts & (position == last))
    tl.store(ids + position, position * 0 + tl.load(own + _T_START), mask=(counts == 0) & (position < bound))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _escapes(own, position, stop, words: tl.constexpr, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which rows from ``position``, the first of a word, on are escaped; none from ``stop`` on."""
    word = position // bits + tl.arange(0, words)
    lane = tl.arange(0, bits)
    row = word[:, None] * bits + lane[None, :]
    pattern = tl.load(_words(tl.load(own + _C_ESCAPED)) + word, mask=word * bits < stop, other=0)
    return row, (pattern[:, None] >> lane[None, :]) & 1


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _count_escapes(columns, words: tl.constexpr, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    own, chunk = columns + tl.program_id(1).to(tl.int64) * _LINE, tl.program_id(0).to(tl.int64)
    if chunk >= tl.load(own + _C_CHUNKS):
        return
    size = tl.load(own + _C_CHUNK_ROWS)
    start = chunk * size
    stop = tl.minimum(start + size, tl.load(own + _C_BOUND))
    found = tl.zeros([words], dtype=tl.int32)
    position = start // bits * bits
    while position < stop:
        row, flags = _escapes(own, position, stop, words, bits)
        found += tl.sum(flags * ((row >= start) & (row < stop)).to(tl.int32), axis=1)
        position += words * bits
    tl.store(_numbers(tl.load(own + _C_COUNTS)) + chunk, tl.sum(found, axis=0).to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _escapes_before(own, chunk, together: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many the chunks before have."""
    counts = _numbers(tl.load(own + _C_COUNTS))
    found = tl.zeros([together], dtype=tl.int64)
    first = chunk * 0
    while first < chunk:
        number = first + tl.arange(0, together)
        found += tl.load(counts + number, mask=number < chunk, other=0)
        first += together
    return tl.sum(found, axis=0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _list_escapes(  # type: ignore[no-untyped-def]
    columns, words: tl.constexpr, bits: tl.constexpr, together: tl.constexpr
):
    own, chunk = columns + tl.program_id(1).to(tl.int64) * _LINE, tl.program_id(0).to(tl.int64)
    if chunk >= tl.load(own + _C_CHUNKS):
        return
    if tl.load(_numbers(tl.load(own + _C_COUNTS)) + chunk) == 0:
        return
    size, places, room = tl.load(own + _C_CHUNK_ROWS), _numbers(tl.load(own + _C_PLACES)), tl.load(own + _C_ROOM)
    start = chunk * size
    stop = tl.minimum(start + size, tl.load(own + _C_BOUND))
    before = _escapes_before(own, chunk, together)
    position = start // bits * bits
    while position < stop:
        row, flags = _escapes(own, position, stop, words, bits)
        flags = flags * ((row >= start) & (row < stop)).to(tl.int32)
        in_word = tl.sum(flags, axis=1)
        earlier = tl.cumsum(in_word, axis=0) - in_word
        place = before + (earlier[:, None] + tl.cumsum(flags, axis=1) - 1).to(tl.int64)
        tl.store(places + place, row, mask=(flags != 0) & (place < room))
        before += tl.sum(in_word, axis=0).to(tl.int64)
        position += words * bits


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _copy(  # type: ignore[no-untyped-def]
    lines, together: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    own = lines + tl.program_id(1).to(tl.int64) * _LINE
    room, chunks, sample = tl.load(own + _C_ROOM), tl.load(own + _C_CHUNKS), tl.load(own + _C_SAMPLE)
    first = tl.program_id(0).to(tl.int64) * rows
    if first >= room + chunks * sample:
        return
    item = first + tl.arange(0, rows)
    escapes = item < room
    escaped = tl.minimum(_escapes_before(own, chunks, together), room)
    size, bound, counted = tl.load(own + _C_CHUNK_ROWS), tl.load(own + _C_BOUND), tl.load(own + _C_TOTAL)
    total = tl.minimum(tl.load(_numbers(counted), mask=counted != 0, other=bound), bound)
    each = tl.maximum(sample, 1)
    number = tl.maximum(item - room, 0)
    chunk = number // each
    chunk_rows = tl.maximum(tl.minimum(total - chunk * size, size), 0)
    sampled = chunk * size + (number - chunk * each) * chunk_rows // each
    wanted = tl.where(escapes, item < escaped, (item < room + chunks * sample) & (chunk_rows > 0))
    place = tl.load(_numbers(tl.load(own + _C_PLACES)) + item, mask=escapes & wanted, other=0)
    position = tl.where(escapes, place, sampled)
    ids = tl.load(own + _C_IDS)
    listed = tl.load(_numbers(ids) + position, mask=wanted & (ids != 0), other=0)
    row = tl.where(ids != 0, listed, position + tl.load(own + _C_START))
    width = tl.load(own + _C_WORDS)
    source = _words(tl.load(own + _C_SOURCE)) + row * width
    escape_rows, sample_rows = _words(tl.load(own + _C_ESCAPE_ROWS)), _words(tl.load(own + _C_SAMPLE_ROWS))
    column = tl.arange(0, columns).to(tl.int64)
    while tl.min(column, axis=0) < width:
        inside = wanted[:, None] & (column < width)[None, :]
        values = tl.load(source[:, None] + column[None, :], mask=inside, other=0)
        at = escape_rows + item[:, None] * width + column[None, :]
        tl.store(at, values, mask=inside & escapes[:, None])
        at = sample_rows + number[:, None] * width + column[None, :]
        tl.store(at, values, mask=inside & (escapes == 0)[:, None])
        column += columns


def _on_device_of(numbers: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, which with several in one process need not be the tensor's."""
    if numbers.is_cuda and numbers.get_device() != torch.cuda.current_device():
        return torch.cuda.device(numbers.device)
    return nullcontext()
