"""Copying rows, all or some: every width, type and layout gives what torch gives, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernels import rows
from holdfast.kernels.rows import Copy, Gather, copy_tensors, gather_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.uint8]


@st.composite
def gathers(draw: st.DrawFn) -> Gather:
    """Widths on both sides of the kernel's lines; more rows than the threads take at a time; ids in any order."""
    count = draw(st.sampled_from([1, 3, 100, 2048, 2049, 5000]))
    width = draw(st.sampled_from([1, 8, 15, 16, 17, 32, 64, 80, 128, 192]))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    raw = torch.randint(0, 256, (count, width * dtype.itemsize), dtype=torch.uint8, generator=generator)
    ids = torch.randint(0, count, (draw(st.sampled_from([0, 1, 13, 2048, 4097])),), generator=generator)
    source = raw.view(dtype)
    room = torch.empty(len(ids) * width * dtype.itemsize + 64, dtype=torch.uint8)
    at = draw(st.sampled_from([0, 8, 56]))  # in a line
    return Gather(room[at : len(room) - 64 + at].view(dtype).view(len(ids), width), source, ids)


@settings(deadline=None)
@given(st.lists(gathers(), max_size=5), st.sampled_from([1, 2, 5]), st.sampled_from([1, 2**24]))
def test_gathers_what_indexing_gives(work: list[Gather], threads: int, streamed_bytes: int) -> None:
    before, rows._STREAMED_BYTES = (torch.get_num_threads(), rows._STREAMED_BYTES), streamed_bytes
    torch.set_num_threads(threads)
    try:
        gather_rows(work)
    finally:
        torch.set_num_threads(before[0])
        rows._STREAMED_BYTES = before[1]
    for target, source, ids in work:
        assert torch.equal(target.view(torch.uint8), source[ids].view(torch.uint8))


def test_writes_nothing_beside_the_target() -> None:
    source = torch.arange(5000 * 64, dtype=torch.float32).view(5000, 64)
    room = torch.full((5002, 64), -1.0)
    gather_rows([Gather(room[1:-1], source, torch.arange(5000).flip(0))])
    assert torch.equal(room[1:-1], source.flip(0))
    assert (room[0] == -1).all() and (room[-1] == -1).all()


@pytest.mark.parametrize("columns", [slice(0, 16), slice(0, 32, 2)])
def test_a_source_with_gaps(columns: slice) -> None:
    source = torch.randn(100, 32)[:, columns]
    target = torch.empty(3, 16)
    gather_rows([Gather(target, source, torch.tensor([7, 0, 99]))])
    assert torch.equal(target, source[[7, 0, 99]])


SHIFTS = st.integers(0, 70)  # bytes: targets and sources that begin anywhere in a line


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 63, 64, 65, 200, 2**18 - 1, 2**18 + 9]), SHIFTS, SHIFTS), max_size=5),
    st.sampled_from([1, 2, 5]),
    st.integers(0, 2**32),
)
def test_copies_what_torch_copies_and_nothing_beside_it(
    pieces: list[tuple[int, int, int]], threads: int, seed: int
) -> None:
    rows._STREAMED_BYTES, before = 1, rows._STREAMED_BYTES
    generator = torch.Generator().manual_seed(seed)
    sources = [torch.randint(0, 256, (n + at,), dtype=torch.uint8, generator=generator)[at:] for n, _, at in pieces]
    rooms = [torch.full((n + at + 80,), 7, dtype=torch.uint8) for n, at, _ in pieces]
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        places = [slice(at, at + n) for n, at, _ in pieces]
        copy_tensors([Copy(room[place], source) for room, place, source in zip(rooms, places, sources, strict=True)])
    finally:
        torch.set_num_threads(torch_threads)
        rows._STREAMED_BYTES = before
    for room, place, source in zip(rooms, places, sources, strict=True):
        assert torch.equal(room[place], source)
        assert (room[: place.start] == 7).all() and (room[place.stop :] == 7).all()


def test_large_tensors_of_another_type_or_with_gaps_are_copied_too() -> None:
    large = torch.randn(2**18, 20)
    targets = [torch.empty_like(large), torch.empty_like(large, dtype=torch.float64), torch.empty(2**18, 10)]
    sources = [large, large, large[:, ::2]]
    copy_tensors([Copy(target, source) for target, source in zip(targets, sources, strict=True)])
    assert torch.equal(targets[0], large) and torch.equal(targets[1], large.double())
    assert torch.equal(targets[2], large[:, ::2])


def test_the_kernel_is_in_use_here() -> None:
    """Where it cannot be loaded torch does its work, and the tests above would not notice."""
    assert rows._kernels() is not None
