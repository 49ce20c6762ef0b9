"""Pieces of files are read together where they lie together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.checkpoint.restore.native_layout import COLUMN, PIECE

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


def test_what_was_kept_is_applied_again_without_a_read(tmp_path: Path) -> None:
    ids, rows = np.array([0, 2, 5], dtype=np.uint32), np.arange(6, dtype=np.int64).reshape(3, 2)
    content = ids.tobytes().ljust(64, b"\0") + rows.tobytes()
    path = tmp_path / "bundle"
    path.write_bytes(content)
    name, checksums = np.frombuffer(bytes(path) + b"\0", np.uint8), np.array([zlib.crc32(content)], np.uint32)
    target, starts = np.zeros((8, 2), dtype=np.int64), np.zeros(1, dtype=np.int64)
    column = np.array([(64, 16, target.ctypes.data)], dtype=COLUMN)
    pieces = np.zeros(1, dtype=PIECE)
    fields = {"path": name.ctypes.data, "length": len(content), "checksums": checksums.ctypes.data, "first": 1}
    fields |= {"block_bytes": 2**17, "ids_width": 4, "rows": 3, "ids_count": 3, "span": 5, "segment_count": 1}
    fields |= {"columns": column.ctypes.data, "column_count": 1, "segments": starts.ctypes.data, "high": 8}
    for field, value in fields.items():
        pieces[field] = value
    kept = worked(pieces, hold=2**20).held()
    target[:] = 0
    path.unlink()
    assert worked(pieces, held=kept).written().tolist() == [3]
    assert target[[1, 3, 6]].tolist() == rows.tolist() and not target[[0, 2, 4, 5, 7]].any()


def worked(pieces: NDArray[Any], **settings: Any) -> Any:
    shared = native.Pieces(pieces.copy(), np.zeros(len(pieces), dtype=np.int64), native.functions(), **settings)
    assert shared.choose(0) == 1
    shared.work(np.empty(shared.memory_bytes, dtype=np.uint8))
    return shared
