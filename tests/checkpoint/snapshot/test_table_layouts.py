"""What is worked out once for many saves: the same as long as nothing that decides it changes, and never longer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.snapshot.bound_layout import BoundLayout
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_layouts import TableLayouts
from holdfast.checkpoint.snapshot.table_parts import TablePart, TablePartKey, TableParts
from holdfast.types import EXACTLY, Stored
from tests.checkpoint.snapshot.staging_agent import FRAME_BYTES, table_spec, touched

ROWS, DIM = 5000, 16


def copy_of(most: int, rows: int = ROWS) -> TableCopy:
    found = touched(rows, torch.arange(1), 0, rows)
    listing = replace(found, touched=replace(found.touched, most=most))
    weight = torch.zeros(rows, DIM)
    return TableCopy(
        index=0, columns=table_spec(rows, DIM).columns, tensors=(weight, weight), start=0, stop=rows, ids=None,
        unlisted=listing,
    )  # fmt: skip


def layout_of(layouts: TableLayouts, copy: TableCopy, at: int = 0, *, escapes: int = 0) -> BoundLayout:
    found = layouts.of(copy, {}, at, escapes=escapes)
    assert found is not None
    return found


@settings(max_examples=50, deadline=None)
@given(most=st.integers(1, 3 * ROWS))
def test_a_layout_has_room_for_the_bound_and_for_little_more(most: int) -> None:
    bound = layout_of(TableLayouts(FRAME_BYTES), copy_of(most)).bound
    assert min(most, ROWS) <= bound <= min(ROWS, most + most // 16)


def test_a_bound_that_grows_a_little_leaves_the_layout_as_it_is() -> None:
    layouts = TableLayouts(FRAME_BYTES)
    first = layout_of(layouts, copy_of(2010))
    assert layout_of(layouts, copy_of(2011)) is first
    assert layout_of(layouts, copy_of(2100)).bound >= 2100


def test_whatever_decides_a_layout_makes_a_new_one() -> None:
    layouts = TableLayouts(FRAME_BYTES)
    first = layout_of(layouts, copy_of(2000))
    later = layout_of(layouts, copy_of(2000), 512)
    assert later.start == 512 and first.start == 0
    assert layout_of(layouts, copy_of(2000), 512, escapes=1999).escapes == 1999
    narrow = replace(copy_of(2000), columns=table_spec(ROWS, DIM).columns[:1], tensors=(torch.zeros(ROWS, DIM),))
    assert len(layout_of(layouts, narrow, 512).columns) == 1
    whole = replace(copy_of(2000), unlisted=None)
    assert layout_of(layouts, whole).ids is None and layout_of(layouts, whole).bound == ROWS


def part(parts: TableParts, stored: Stored = EXACTLY, rows: int = ROWS, *, whole: bool = False) -> TablePart:
    key = TablePartKey(spec=table_spec(rows, DIM), stored=stored, start=0, stop=rows, whole=whole)
    return parts.of(0, key)


def test_a_table_is_described_once_until_its_precision_or_its_columns_change() -> None:
    parts, two = TableParts(), Stored(bits=2)
    first = part(parts, two)
    assert part(parts, two) is first and first.codecs
    whole = part(parts, two, whole=True)
    assert whole.told.whole and part(parts, two) is first
    exact = part(parts)
    assert not exact.codecs and exact.told.codecs is None
    assert part(parts, rows=ROWS + 1).told.stop == ROWS + 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(900)
def test_fused_kernels_write_what_torchs_operations_do() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    environment = {**os.environ, "TRITON_INTERPRET": "0" if device == "cuda" else "1"}
    program = "tests.checkpoint.snapshot.fused_check"
    subprocess.run([sys.executable, "-m", program, device], env=environment, check=True)
