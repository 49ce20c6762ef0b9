"""Row records: every bit of a row leaves its shard and comes back, by NumPy and Numba alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernels import records
from holdfast.kernels.plain import on_lines
from holdfast.kernels.records import RowRecords, cpu, reference, words_of
from holdfast.kernels.runs import Runs
from holdfast.types import UpdateRule
from tests.kernels.optimize_cases import OPTIMIZERS, RULES, Case, Shard, cases, trained_shard

any_rule = st.sampled_from(list(RULES.values()))


def of(shard: Shard) -> RowRecords:
    return RowRecords(shard.rule, shard.weights, shard.slots)


@pytest.mark.parametrize("kernels", [reference, cpu])
@settings(deadline=None)
@given(rule=any_rule, case=cases())
def test_a_record_is_the_weights_and_then_the_slots_of_the_rule(kernels: object, rule: UpdateRule, case: Case) -> None:
    shard = trained_shard(rule, case.rows, case.dim, case.seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_kernels", lambda: kernels)
        found = of(shard).read(case.ids)
    assert found.shape == (len(case.ids), words_of(rule, case.dim))
    for row, record in zip(case.ids.tolist(), found, strict=True):
        parts = [shard.weights[row], *(shard.slots[slot.name][row] for slot in rule.slots)]
        assert record.tobytes() == b"".join(np.asarray(part, "<f4").tobytes() for part in parts)


@pytest.mark.parametrize("kernels", [reference, cpu])
@settings(deadline=None)
@given(rule=any_rule, case=cases())
def test_records_come_back_bit_for_bit_whatever_they_hold(kernels: object, rule: UpdateRule, case: Case) -> None:
    """Signalling NaNs and negative zeros included: words are copied, not numbers."""
    shard, draw = trained_shard(rule, case.rows, case.dim, case.seed), np.random.default_rng(case.seed)
    rows = np.unique(case.ids)
    wanted = draw.integers(0, 2**32, (len(rows), words_of(rule, case.dim)), dtype=np.uint32)
    before = of(shard).read(np.arange(case.rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_kernels", lambda: kernels)
        of(shard).write(rows, wanted)
    before[rows] = wanted
    np.testing.assert_array_equal(of(shard).read(np.arange(case.rows)), before)


@pytest.mark.parametrize("kernels", [reference, cpu])
@settings(deadline=None)
@given(rule=any_rule, case=cases())
def test_runs_of_rows_leave_and_come_back_as_their_rows_do(kernels: object, rule: UpdateRule, case: Case) -> None:
    shard, draw = trained_shard(rule, case.rows, case.dim, case.seed), np.random.default_rng(case.seed)
    cuts = np.unique(draw.integers(0, case.rows + 1, 6))
    found = Runs(cuts[:-1][::2], np.diff(cuts)[::2])
    before = of(shard).read(np.arange(case.rows))
    wanted = draw.integers(0, 2**32, (found.size, words_of(rule, case.dim)), dtype=np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_kernels", lambda: kernels)
        np.testing.assert_array_equal(of(shard).read_runs(found), before[found.rows()])
        of(shard).write_runs(found, wanted)
    before[found.rows()] = wanted
    np.testing.assert_array_equal(of(shard).read(np.arange(case.rows)), before)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("start", [0, 4])
def test_large_blocks_of_whole_lines_are_moved_past_the_caches_as_small_ones_are(name: str, start: int) -> None:
    rule, draw = OPTIMIZERS[name].rule(), np.random.default_rng(1)
    rows, width = 3000, 32
    widths = [width, *(1 if slot.single else width for slot in rule.slots)]
    columns = [on_lines((rows * each + start,), np.float32)[start:].reshape(rows, each) for each in widths]
    for column in columns:
        column.view(np.uint32)[:] = draw.integers(0, 2**32, column.shape, dtype=np.uint32)
    slots = {slot.name: column for slot, column in zip(rule.slots, columns[1:], strict=True)}
    shard = RowRecords(rule, columns[0], slots)
    found = Runs(np.arange(1, rows - 100, 100), np.full(29, 90))
    wanted = np.empty((found.size, shard.words), np.uint32)
    reference.gather_runs(shard._columns, found, wanted)
    assert wanted.nbytes >= cpu._STREAMED_BYTES
    np.testing.assert_array_equal(shard.read_runs(found), wanted)
    changed = draw.integers(0, 2**32, wanted.shape, dtype=np.uint32)
    expected = tuple(column.copy() for column in shard._columns)
    reference.put_runs(expected, found, changed)
    shard.write_runs(found, changed)
    for column, each in zip(shard._columns, expected, strict=True):
        np.testing.assert_array_equal(column, each)


def test_memory_on_lines_begins_where_a_line_does() -> None:
    for size in range(1, 70):
        found = on_lines((size, 3), np.float32)
        assert found.shape == (size, 3) and found.ctypes.data % 64 == 0 and found.flags.c_contiguous


def test_runs_outside_a_shard_are_refused() -> None:
    shard = of(trained_shard(RULES["adagrad", False], 5, 4, seed=1))
    with pytest.raises(ConfigurationError, match="outside a shard of 5 rows"):
        shard.read_runs(Runs(np.array([3]), np.array([3])))
    with pytest.raises(ConfigurationError, match="records of 2 rows"):
        shard.write_runs(Runs(np.array([3]), np.array([2])), np.zeros((1, 8), np.uint32))


def test_no_rows_of_an_empty_shard_are_no_records() -> None:
    for rule in RULES.values():
        found = of(trained_shard(rule, 0, 4, seed=1)).read(np.empty(0, np.int64))
        assert found.shape == (0, words_of(rule, 4))


def test_rows_outside_and_records_of_another_size_are_refused() -> None:
    shard = trained_shard(RULES["adagrad", False], 5, 4, seed=1)
    with pytest.raises(ConfigurationError, match="row 5 is outside a shard of 5 rows"):
        of(shard).read(np.array([0, 5]))
    with pytest.raises(ConfigurationError, match="row -1 is outside a shard"):
        of(shard).write(np.array([-1]), np.zeros((1, 8), np.uint32))
    with pytest.raises(ConfigurationError, match="records of 1 rows must be uint32 of 8 words"):
        of(shard).write(np.array([1]), np.zeros((1, 7), np.uint32))
    with pytest.raises(ConfigurationError, match="columns of records must be C-contiguous float32"):
        RowRecords(shard.rule, shard.weights.astype(np.float64), shard.slots)  # type: ignore[arg-type]


def test_threads_that_share_a_large_block_move_the_same_records() -> None:
    rule = OPTIMIZERS["adagrad"].rule()
    weights = np.random.default_rng(1).standard_normal((20_000, 64), dtype=np.float32)
    slots = {"sum": np.random.default_rng(2).random((20_000, 64), dtype=np.float32)}
    shard = RowRecords(rule, weights, slots)
    found = Runs(np.arange(0, 20_000, 100), np.full(200, 64))
    records = shard.read_runs(found, threads=3)
    np.testing.assert_array_equal(records, shard.read(found.rows()))
    other = RowRecords(rule, np.zeros_like(weights), {"sum": np.zeros_like(slots["sum"])})
    other.write_runs(found, records, threads=3)
    np.testing.assert_array_equal(other.read(found.rows()), records)
    assert not other.read(np.setdiff1d(np.arange(20_000), found.rows())).any()
