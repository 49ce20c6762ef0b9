"""Memory of frames: used again, never by two at once."""

from __future__ import annotations

import mmap

import pytest

from holdfast.integrations.dcp.pages import Pages

SIZE_BYTES = 3 << 20


def test_pieces_begin_with_a_page_and_do_not_overlap() -> None:
    pages = Pages(SIZE_BYTES)
    first, second = pages.take().memory, pages.take().memory
    assert first.ctypes.data % mmap.PAGESIZE == second.ctypes.data % mmap.PAGESIZE == 0
    first[:], second[:] = 1, 2
    assert first.sum() == SIZE_BYTES
    assert second.sum() == 2 * SIZE_BYTES


@pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="the system takes no single pages back")
def test_what_was_given_back_is_used_again_and_holds_what_is_written_to_it() -> None:
    pages = Pages(SIZE_BYTES)
    piece = pages.take()
    piece.memory[:] = 1
    pages.give_back(piece)
    again, other = pages.take(), pages.take()
    assert again is piece
    assert other is not piece
    again.memory[:] = 3
    assert again.memory.min() == again.memory.max() == 3
