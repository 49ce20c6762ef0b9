"""Pieces of files are read together where they lie together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from holdfast.checkpoint.restore.native_layout import PIECE

native = pytest.importorskip("holdfast.checkpoint.restore.native")
KIB = 1024


def reads(*places: tuple[int, int, int], groups: Sequence[int] = ()) -> list[int]:
    """In how many reads pieces at these places (file, offset, length) are read, for each group."""
    pieces = np.zeros(len(places), dtype=PIECE)
    pieces["path"], pieces["offset"], pieces["length"] = np.array(places).T
    numbers = np.array(groups or [0] * len(places), dtype=np.int64)
    shared = native.Pieces(pieces, numbers, native.functions())
    return [shared.choose(group) for group in range(numbers[-1] + 1)]


def test_pieces_beside_each_other_are_one_read() -> None:
    assert reads(*((1, 100 + 50 * number, 50) for number in range(26))) == [1]


def test_a_small_gap_is_read_over_and_a_large_one_is_not() -> None:
    assert reads((1, 0, 50), (1, 50 + 16 * KIB, 50)) == [1]
    assert reads((1, 0, 50), (1, 51 + 16 * KIB, 50)) == [2]


def test_other_files_and_pieces_that_overlap_are_reads_of_their_own() -> None:
    assert reads((1, 0, 50), (2, 50, 50)) == [2]
    assert reads((1, 0, 50), (1, 20, 50)) == [2]


def test_reads_of_several_pieces_stay_small_enough_to_be_shared() -> None:
    assert reads(*((1, 300 * KIB * number, 300 * KIB) for number in range(7))) == [3]
    assert reads((1, 0, 9000 * KIB), (1, 9000 * KIB, 50)) == [2]


def test_groups_are_not_read_together() -> None:
    assert reads((1, 0, 50), (1, 50, 50), (1, 100, 50), (1, 150, 50), groups=(0, 0, 2, 2)) == [1, 0, 1]


def test_no_pieces_are_no_reads() -> None:
    shared = native.Pieces(np.zeros(0, dtype=PIECE), np.zeros(0, dtype=np.int64), native.functions())
    assert shared.choose(0) == 0 and shared.memory_bytes == 0
