"""Bit-set marks in Triton. A 32-bit word is the smallest unit that a GPU updates atomically.

Row ``i`` is bit ``i & 31`` of the little-endian word ``i >> 5``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from holdfast.kernels.bit_sets.portable import count, list_ids

__all__ = ["count", "count_later", "list_bounded", "list_ids", "mark", "mark_nonzero_rows"]

_IDS_PER_PROGRAM = 256
_WORD_BITS = 32
_COLUMNS = 64
_WORDS_PER_PROGRAM = 128  # 4096 rows


def mark(bits: Tensor, ids: Tensor, rows: int) -> None:
    """Set the bits of ``ids``; an id outside the table is left out, since telling would mean to wait for the device."""
    if ids.numel():
        grid = (triton.cdiv(ids.numel(), _IDS_PER_PROGRAM),)
        with _on_device_of(bits):
            _mark[grid](bits.view(torch.int32), ids, ids.numel(), rows, ids_per_program=_IDS_PER_PROGRAM)


def mark_nonzero_rows(bits: Tensor, patterns: Tensor) -> None:
    """Set the bit of every row of a contiguous 2-D integer tensor that is not all zero."""
    rows, columns = patterns.shape
    with _on_device_of(bits):
        _mark_nonzero_rows[(triton.cdiv(rows, _WORD_BITS),)](
            bits.view(torch.int32), patterns, rows, columns, word_bits=_WORD_BITS, columns_per_load=_COLUMNS
        )


def list_bounded(bits: Tensor, start: int, stop: int, bound: int, fill: int) -> tuple[Tensor, Tensor]:
    """The first ``bound`` rows of ``[start, stop)`` whose bit is set, then ``fill``; and how many there are in all."""
    found = torch.full((bound,), fill, dtype=torch.int64, device=bits.device)
    counts = _count_programs(bits, start, stop)
    ends = counts.cumsum(0)
    if bound:
        with _on_device_of(bits):
            _list[(len(counts),)](
                found, bits.view(torch.int32), ends - counts, start, stop, bound,
                words_per_program=_WORDS_PER_PROGRAM, word_bits=_WORD_BITS,
            )  # fmt: skip
    return found, ends[-1:]


def count_later(bits: Tensor, start: int, stop: int) -> Tensor:
    """How many rows of ``[start, stop)`` have their bit set, as one number on the device."""
    return _count_programs(bits, start, stop).sum().view(1)


def _count_programs(bits: Tensor, start: int, stop: int) -> Tensor:
    """How many rows each program has to list."""
    words = bits.view(torch.int32)
    counts = torch.empty(triton.cdiv(len(words), _WORDS_PER_PROGRAM), dtype=torch.int64, device=bits.device)
    with _on_device_of(bits):
        _count[(len(counts),)](counts, words, start, stop, words_per_program=_WORDS_PER_PROGRAM, word_bits=_WORD_BITS)
    return counts


# Triton reads annotations as code of the kernel: only its own may stand there.
# Sizes are not specialized on: a new batch length must not compile anything in the middle of training.
@triton.jit(do_not_specialize=["length", "rows"])  # type: ignore[untyped-decorator, unused-ignore]
def _mark(words, ids, length, rows, ids_per_program: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0).to(tl.int64) * ids_per_program + tl.arange(0, ids_per_program)
    row = tl.load(ids + position, mask=position < length, other=-1).to(tl.int64)
    inside = (row >= 0) & (row < rows)
    word = words + (row >> 5)
    bit = (row * 0 + 1).to(tl.int32) << (row & 31).to(tl.int32)
    # Hot rows come in every batch: reading first spares most atomic operations.
    unset = (tl.load(word, mask=inside, other=0) & bit) == 0
    tl.atomic_or(word, bit, mask=inside & unset, sem="relaxed")


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator, unused-ignore]
def _mark_nonzero_rows(  # type: ignore[no-untyped-def]
    words, patterns, rows, columns: tl.constexpr, word_bits: tl.constexpr, columns_per_load: tl.constexpr
):
    # One program per word: its rows are no other program's, so nothing here is atomic.
    index = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, word_bits)
    row = index * word_bits + lane
    touched = tl.zeros([word_bits], dtype=tl.int32)
    first = 0
    while first < columns:
        column = first + tl.arange(0, columns_per_load)
        mask = (row[:, None] < rows) & (column[None, :] < columns)
        pattern = tl.load(patterns + row[:, None] * columns + column[None, :], mask=mask, other=0)
        touched = touched | tl.max((pattern != 0).to(tl.int32), axis=1)
        first += columns_per_load
    word = tl.sum(touched << lane, axis=0)
    tl.store(words + index, tl.load(words + index) | word)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _flags(  # type: ignore[no-untyped-def]
    words, start, stop, words_per_program: tl.constexpr, word_bits: tl.constexpr
):
    """The rows of a program, a word of them in each line, and which of them are in the set."""
    word = tl.program_id(0).to(tl.int64) * words_per_program + tl.arange(0, words_per_program)
    lane = tl.arange(0, word_bits)
    row = word[:, None] * word_bits + lane[None, :]
    pattern = tl.load(words + word, mask=word * word_bits < stop, other=0)
    inside = (row >= start) & (row < stop)
    return row, ((pattern[:, None] >> lane[None, :]) & 1) * inside.to(tl.int32)


@triton.jit(do_not_specialize=["start", "stop"])  # type: ignore[untyped-decorator, unused-ignore]
def _count(  # type: ignore[no-untyped-def]
    counts, words, start, stop, words_per_program: tl.constexpr, word_bits: tl.constexpr
):
    _, flags = _flags(words, start, stop, words_per_program, word_bits)
    tl.store(counts + tl.program_id(0), tl.sum(tl.sum(flags, axis=1), axis=0).to(tl.int64))


@triton.jit(do_not_specialize=["start", "stop", "bound"])  # type: ignore[untyped-decorator, unused-ignore]
def _list(  # type: ignore[no-untyped-def]
    found, words, before, start, stop, bound, words_per_program: tl.constexpr, word_bits: tl.constexpr
):
    row, flags = _flags(words, start, stop, words_per_program, word_bits)
    in_word = tl.sum(flags, axis=1)
    earlier = tl.cumsum(in_word, axis=0) - in_word
    place = tl.load(before + tl.program_id(0)) + (earlier[:, None] + tl.cumsum(flags, axis=1) - 1).to(tl.int64)
    tl.store(found + place, row, mask=(flags != 0) & (place < bound))


def _on_device_of(bits: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, which with several in one process need not be the tensor's."""
    if bits.is_cuda and bits.get_device() != torch.cuda.current_device():
        return torch.cuda.device(bits.device)
    return nullcontext()
