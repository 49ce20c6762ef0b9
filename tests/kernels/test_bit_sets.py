"""Every implementation of the bit-set kernels gives the reference's result, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernels.bit_sets import cpu, portable, reference
from holdfast.kernels.bit_sets import tensors as sets

ROWS = st.integers(min_value=1, max_value=300)


@st.composite
def rows_and_ids(draw: st.DrawFn) -> tuple[int, list[int]]:
    rows = draw(ROWS)
    return rows, draw(st.lists(st.integers(0, rows - 1), max_size=80))


@st.composite
def set_and_range(draw: st.DrawFn) -> tuple[torch.Tensor, set[int], int, int]:
    rows, ids = draw(rows_and_ids())
    bits = sets.new_set(rows)
    sets.mark(bits, torch.tensor(ids, dtype=torch.int64), rows)
    start, stop = sorted((draw(st.integers(0, rows)), draw(st.integers(0, rows))))
    return bits, set(ids), start, stop


def rows_in(bits: torch.Tensor) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.numpy(), bitorder="little")).tolist())


@settings(deadline=None)
@given(rows_and_ids(), st.sampled_from([np.int64, np.int32]))
def test_marks_set_exactly_the_bits_of_their_ids(case: tuple[int, list[int]], dtype: type) -> None:
    rows, ids = case
    for kernel in (reference.mark, cpu.mark):
        bits = sets.new_set(rows)
        assert kernel(bits.numpy(), np.array(ids, dtype=dtype), rows) == -1
        assert rows_in(bits) == set(ids)
    bits = sets.new_set(rows)
    portable.mark(bits, torch.from_numpy(np.array(ids, dtype=dtype)), rows)
    assert rows_in(bits) == set(ids)


def test_all_ids_that_share_a_byte_are_set() -> None:
    bits = sets.new_set(64)
    sets.mark(bits, torch.arange(8).repeat(3), 64)
    assert bits.tolist() == [255, 0, 0, 0, 0, 0, 0, 0]


@settings(deadline=None)
@given(set_and_range(), st.lists(st.integers(0, 299), max_size=20))
def test_marks_keep_what_is_there(case: tuple[torch.Tensor, set[int], int, int], more: list[int]) -> None:
    bits, ids, _, _ = case
    more = [i for i in more if i < 8 * bits.numel()]
    sets.mark(bits, torch.tensor(more, dtype=torch.int64), 8 * bits.numel())
    assert rows_in(bits) == ids | set(more)


@settings(deadline=None)
@given(set_and_range())
def test_listing_and_counting_agree_with_python_sets(case: tuple[torch.Tensor, set[int], int, int]) -> None:
    bits, ids, start, stop = case
    wanted = sorted(i for i in ids if start <= i < stop)
    for kernel in (reference, cpu):
        assert kernel.list_ids(bits.numpy(), start, stop).tolist() == wanted
        assert kernel.count(bits.numpy(), start, stop) == len(wanted)
    assert portable.list_ids(bits, start, stop).tolist() == wanted
    assert portable.count(bits, start, stop) == len(wanted)
    listed = sets.list_ids(bits, start, stop)
    assert (listed.dtype, listed.tolist()) == (torch.int64, wanted)
    assert sets.count(bits, start, stop) == len(wanted)


@settings(deadline=None)
@given(st.data(), st.sampled_from([np.uint8, np.int16, np.int32, np.int64]))
def test_nonzero_rows_are_found_in_every_integer_width(data: st.DataObject, dtype: type) -> None:
    rows, columns = data.draw(ROWS), data.draw(st.integers(1, 9))
    patterns = np.zeros((rows, columns), dtype=dtype)
    touched = data.draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1)), max_size=30))
    for row, column in touched:
        patterns[row, column] = data.draw(st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max).filter(bool))
    wanted = {row for row, _ in touched}
    for kernel in (reference.mark_nonzero_rows, cpu.mark_nonzero_rows):
        bits = sets.new_set(rows)
        kernel(bits.numpy(), patterns)
        assert rows_in(bits) == wanted
    bits = sets.new_set(rows)
    portable.mark_nonzero_rows(bits, torch.from_numpy(patterns))
    assert rows_in(bits) == wanted


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 3, 4, 64])
def test_minus_zero_and_nan_count_as_nonzero(dtype: torch.dtype, columns: int) -> None:
    values = torch.zeros(100, columns)
    values[7, -1], values[31, 0], values[32, -1], values[99, 0] = -0.0, float("nan"), 1.0, -1.0
    bits = sets.new_set(100)
    sets.mark_nonzero_rows(bits, values.to(dtype))
    assert rows_in(bits) == {7, 31, 32, 99}


def test_rows_of_any_layout_and_rank_are_read() -> None:
    transposed = torch.zeros(5, 9).t()
    transposed[4, 2] = 1
    shifted = torch.zeros(31)[1:].view(10, 3)  # does not start at a multiple of 8 bytes
    shifted[9, 2] = 1
    flat = torch.zeros(9)
    flat[8] = 1
    for values, wanted in ((transposed, {4}), (shifted, {9}), (flat, {8}), (torch.zeros(0, 4), set())):
        bits = sets.new_set(values.shape[0])
        sets.mark_nonzero_rows(bits, values)
        assert rows_in(bits) == wanted


def test_merge_and_clear() -> None:
    into, other = sets.new_set(70), sets.new_set(70)
    sets.mark(into, torch.tensor([0, 69]), 70)
    sets.mark(other, torch.tensor([1, 69]), 70)
    sets.merge(into, other)
    assert rows_in(into) == {0, 1, 69}
    assert rows_in(other) == {1, 69}
    sets.clear(into)
    assert rows_in(into) == set()


@pytest.mark.parametrize("bad", [-1, 70, 2**40, -(2**40)])
def test_an_id_outside_the_table_is_an_error_and_never_a_stray_write(bad: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"row {bad} is outside a table of 70 rows"):
        sets.mark(sets.new_set(70), torch.tensor([3, bad, 4]), 70)
    for kernel in (reference.mark, cpu.mark):
        assert kernel(sets.new_set(70).numpy(), np.array([3, bad, 4]), 70) == 1


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, 129)])
def test_a_range_outside_the_set_is_an_error(start: int, stop: int) -> None:
    bits = sets.new_set(128)
    for call in (sets.list_ids, sets.count):
        with pytest.raises(ConfigurationError, match=f"{start} to {stop}"):
            call(bits, start, stop)


def test_ids_of_any_shape_stride_and_integer_type_are_marked() -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 66]])
    for given_ids in (ids, ids.t(), ids.to(torch.int32), ids.to(torch.uint8), ids[:, ::2]):
        bits = sets.new_set(70)
        sets.mark(bits, given_ids, 70)
        assert rows_in(bits) == set(given_ids.flatten().tolist())


def test_an_empty_table_has_an_empty_set() -> None:
    bits = sets.new_set(0)
    sets.mark(bits, torch.empty(0, dtype=torch.int64), 0)
    assert bits.numel() == 0
    assert sets.list_ids(bits, 0, 0).tolist() == []
    assert sets.count(bits, 0, 0) == 0


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_rows_beyond_two_to_the_31_are_told_apart(kernel) -> None:
    rows = 2**32 + 100  # 512 MiB of address space; only the pages that hold a bit are ever touched
    bits = np.zeros(sets.set_bytes(rows), dtype=np.uint8)
    ids = [2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, rows - 1]
    assert kernel.mark(bits, np.array(ids), rows) == -1
    for start in (2**31 - 100, 2**32 - 100):
        wanted = [i for i in ids if start <= i < start + 200]
        assert kernel.list_ids(bits, start, start + 200).tolist() == wanted
        assert kernel.count(bits, start, start + 200) == len(wanted)


def test_a_set_costs_one_bit_per_row() -> None:
    assert sets.set_bytes(10_131_227) * 8 / 10_131_227 < 1.0001
    assert [sets.set_bytes(rows) for rows in (0, 1, 64, 65)] == [0, 8, 8, 16]


def run_python(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_numpy_serves_where_numba_is_missing() -> None:
    program = """
import sys; sys.modules["numba"] = None
import torch; from holdfast.kernels.bit_sets import tensors as sets
sets.warm_up()
bits = sets.new_set(100); sets.mark(bits, torch.tensor([99, 3, 99]), 100)
print(sets.list_ids(bits, 0, 100).tolist(), sets.count(bits, 0, 100), sets.host_kernels().__name__)
"""
    assert run_python(program) == "[3, 99] 2 holdfast.kernels.bit_sets.reference"


def test_foreign_import_the_kernels_imports_no_compiler() -> None:
    run_python("import sys, holdfast.kernels.bit_sets; assert not {'numba', 'triton'} & set(sys.modules)")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(300)
def test_triton_kernels_equal_the_reference() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    environment = {**os.environ, "TRITON_INTERPRET": "0" if device == "cuda" else "1"}
    program = Path(__file__).with_name("triton_check.py")
    subprocess.run([sys.executable, program, device], env=environment, check=True)
