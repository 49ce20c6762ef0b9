"""Updates of rows: NumPy and Numba give the same bytes, in any order of work, and what cannot be applied is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernels import optimize
from holdfast.kernels.optimize import Places, cpu, reference
from holdfast.kernels.records import RowRecords
from holdfast.types import SlotSpec, UpdateMethod, UpdateRule
from tests.kernels.optimize_cases import (
    OPTIMIZERS,
    RULES,
    Case,
    Shard,
    cases,
    exact_gradients_of,
    gradients_of,
    trained_shard,
    with_unusual,
)

every_rule = pytest.mark.parametrize(
    "rule", RULES.values(), ids=[f"{name}-dense" if dense else name for name, dense in RULES]
)
any_rule = st.sampled_from(list(RULES.values()))


class Somewhere:
    """Places in no order, where something is known of each row already, or nothing is."""

    def __init__(self, shard: Shard, seed: int, *, known: bool) -> None:
        self.records = np.random.default_rng(seed).integers(0, 1 << 32, (len(shard.weights), shard.words), np.uint32)
        self.rows = self.at = np.empty(0, np.int64)
        self.before = self.records.copy()
        self._kept = np.uint32(0xFFFFFFFF if known else 0)

    def __call__(self, rows: np.ndarray) -> Places:
        self.rows, self.at = rows, (rows * 7 + 3) % len(self.records) if len(self.records) % 7 else rows[::-1].copy()
        return Places(self.at, np.full(len(rows), self._kept), self.records)

    def expected(self, differences: np.ndarray) -> np.ndarray:
        found = self.before.copy()
        found[self.at] = (found[self.at] & self._kept) ^ differences[self.rows]
        return found


def in_order(records: np.ndarray, rows: np.ndarray) -> Places:
    """Places that are the rows' own, of which nothing is known."""
    return Places(rows, np.zeros(len(rows), np.uint32), records)


def apply_with(kernels: object, shard: Shard, ids: np.ndarray | None, gradients: np.ndarray, lr: float) -> Shard:
    """A copy of the shard after the push, by one of the implementations."""
    found = shard.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "_kernels", lambda: kernels)
        found.apply(ids, gradients, lr)
    return found


@settings(deadline=None, max_examples=200)
@given(any_rule, cases(), st.sampled_from([0.0, 1e-3, 0.1, 3.0]))
def test_numba_gives_the_references_bytes(rule: UpdateRule, case: Case, lr: float) -> None:
    shard, gradients = trained_shard(rule, case.rows, case.dim, case.seed), case.gradients()
    wanted = apply_with(reference, shard, case.ids, gradients, lr)
    assert apply_with(cpu, shard, case.ids, gradients, lr).bytes() == wanted.bytes()


@every_rule
def test_numba_gives_the_references_bytes_over_many_pushes(rule: UpdateRule) -> None:
    """Of many rows, new at first, with values that are not finite in some of them."""
    shards = [trained_shard(rule, 3000, 37, seed=1, step=0) for _ in range(2)]
    for push in range(6):
        ids = np.random.default_rng(push).integers(0, 3000, 4000)
        gradients = with_unusual(gradients_of(4000, 37, seed=push), seed=push)
        for kernels, number in ((reference, 0), (cpu, 1)):
            shards[number] = apply_with(kernels, shards[number], ids, gradients, 0.01)
    assert shards[0].bytes() == shards[1].bytes()


@pytest.mark.parametrize("kernels", [reference, cpu])
@settings(deadline=None)
@given(case=cases())
def test_duplicates_are_summed_one_after_the_other_as_they_stand(kernels: object, case: Case) -> None:
    gradients = case.gradients()
    wanted: dict[int, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for row, gradient in zip(case.ids.tolist(), gradients, strict=True):
            wanted[row] = wanted[row] + gradient if row in wanted else gradient
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "_kernels", lambda: kernels)
        ids, sums = optimize.sum_duplicates(case.ids, gradients)
    assert ids.tolist() == sorted(wanted)
    assert sums.shape == (len(wanted), case.dim) and sums.dtype == np.float32
    expected = np.array([wanted[row] for row in ids.tolist()], np.float32).reshape(sums.shape)
    assert np.array_equal(sums, expected, equal_nan=True)
    assert np.array_equal(np.signbit(sums[sums == 0]), np.signbit(expected[sums == 0]))


@settings(deadline=None)
@given(any_rule, cases())
def test_a_push_with_duplicates_is_one_update_with_their_sums(rule: UpdateRule, case: Case) -> None:
    shard, gradients = trained_shard(rule, case.rows, case.dim, case.seed), case.gradients()
    summed = shard.copy()
    summed.apply(*optimize.sum_duplicates(case.ids, gradients), lr=0.1)
    shard.apply(case.ids, gradients, lr=0.1)
    assert shard.bytes() == summed.bytes()


@settings(deadline=None)
@given(any_rule, cases())
def test_rows_without_a_gradient_stay_as_they_are(rule: UpdateRule, case: Case) -> None:
    shard = trained_shard(rule, case.rows, case.dim, case.seed)
    before, others = shard.copy(), np.setdiff1d(np.arange(case.rows), case.ids)
    shard.apply(case.ids, case.gradients(), lr=0.1)
    assert shard.weights[others].tobytes() == before.weights[others].tobytes()
    for name, slot in shard.slots.items():
        assert slot[others].tobytes() == before.slots[name][others].tobytes()


@every_rule
def test_threads_change_nothing(rule: UpdateRule) -> None:
    shard = trained_shard(rule, 20_000, 9, seed=3)
    ids, gradients = np.random.default_rng(3).integers(0, 20_000, 30_000), gradients_of(30_000, 9, seed=3)
    found = [shard.copy() for _ in range(3)]
    for threads, copy in zip((1, 2, 5), found, strict=True):
        copy.apply(ids, gradients, lr=0.1, threads=threads)
    assert found[0].bytes() == found[1].bytes() == found[2].bytes() != shard.bytes()


@pytest.mark.parametrize("kernels", [reference, cpu])
@settings(deadline=None)
@given(rule=any_rule, case=cases(), known=st.booleans())
def test_an_update_adds_old_xor_new_of_every_row_to_what_is_known_of_it(
    kernels: object, rule: UpdateRule, case: Case, known: bool
) -> None:
    shard, gradients = trained_shard(rule, case.rows, case.dim, case.seed), case.gradients()
    wanted, places = shard.copy(), Somewhere(shard, case.seed, known=known)
    wanted.apply(case.ids, gradients, 0.1)
    before = RowRecords(rule, shard.weights, shard.slots).read(np.arange(case.rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "_kernels", lambda: kernels)
        optimize.RowUpdater(rule, shard.weights, shard.slots).change(case.ids, gradients, lr=0.1, places=places)
    after = RowRecords(rule, shard.weights, shard.slots).read(np.arange(case.rows))
    assert shard.bytes() == wanted.bytes()
    assert places.rows.tolist() == sorted(set(case.ids.tolist()))
    np.testing.assert_array_equal(places.records, places.expected(before ^ after))


@every_rule
def test_threads_tell_the_same_changes(rule: UpdateRule) -> None:
    shard = trained_shard(rule, 9_000, 9, seed=3)
    ids, gradients = np.random.default_rng(3).integers(0, 9_000, 9_000), gradients_of(9_000, 9, seed=3)
    found = []
    for threads in (1, 3):
        copy = shard.copy()
        updater = optimize.RowUpdater(rule, copy.weights, copy.slots)
        records = np.zeros((9_000, copy.words), np.uint32)
        updater.change(ids, gradients, lr=0.1, places=partial(in_order, records), threads=threads)
        found.append(records.tobytes())
    assert found[0] == found[1]


@every_rule
def test_a_dense_parameter_is_all_rows_in_their_order(rule: UpdateRule) -> None:
    for rows, dim in ((7, 33), (1, 500), (0, 4)):
        shard, gradients = trained_shard(rule, rows, dim, seed=4), gradients_of(rows, dim, seed=5)
        by_ids = shard.copy()
        by_ids.apply(np.arange(rows), gradients, lr=0.1)
        shard.apply(None, gradients, lr=0.1)
        assert shard.bytes() == by_ids.bytes()


@pytest.mark.parametrize("kernels", [reference, cpu])
@every_rule
def test_an_empty_push_changes_nothing(kernels: object, rule: UpdateRule) -> None:
    for rows in (0, 5):
        shard = trained_shard(rule, rows, 8, seed=6)
        found = apply_with(kernels, shard, np.empty(0, np.int64), np.empty((0, 8), np.float32), 0.1)
        assert found.bytes() == shard.bytes()


@pytest.mark.parametrize("kernels", [reference, cpu])
def test_every_nan_is_stored_as_the_same_one(kernels: object) -> None:
    """Which of two NaNs an operation returns depends on the order of its operands, and that on the compiler."""
    patterns = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)
    for rule in RULES.values():
        shard = trained_shard(rule, 3, 40, seed=7)
        shard.weights[:] = patterns[:, None]
        found = apply_with(kernels, shard, np.array([2, 0, 1, 0]), np.tile(patterns[[1, 1, 0, 2], None], 40), 0.1)
        assert set(found.weights.view(np.uint32).ravel().tolist()) == {0x7FC00000}


def test_messages_give_ids_and_gradients_that_are_read_only_unaligned_or_of_other_integers() -> None:
    shard, ids = trained_shard(RULES["adagrad", False], 9, 16, seed=8), np.array([3, 1, 3])
    gradients = gradients_of(3, 16, seed=8)
    wanted = shard.copy()
    wanted.apply(ids, gradients, lr=0.1)
    message = b"x" + gradients.tobytes()
    unaligned = np.frombuffer(message, np.float32, offset=1).reshape(3, 16)
    assert not unaligned.flags.aligned and not unaligned.flags.writeable
    wide = np.repeat(gradients, 2, axis=1)
    for integers in (np.int32, np.uint32, np.uint8, np.uint64):
        for given_gradients in (gradients, unaligned, wide[:, ::2]):
            found = shard.copy()
            found.apply(np.frombuffer(ids.astype(integers).tobytes(), integers), given_gradients, lr=0.1)
            assert found.bytes() == wanted.bytes()


@pytest.mark.parametrize("kernels", [reference, cpu])
@pytest.mark.parametrize("outside", [-1, 5, 2**40])
def test_an_id_outside_the_shard_is_named_and_nothing_is_applied(kernels: object, outside: int) -> None:
    shard = trained_shard(RULES["adam", False], 5, 4, seed=9)
    with pytest.raises(ConfigurationError, match=f"row {outside} is outside a shard of 5 rows"):
        apply_with(kernels, shard, np.array([0, outside, 2]), exact_gradients_of(3, 4, seed=1), 0.1)
    with pytest.raises(ConfigurationError, match="row -3 is outside"):
        optimize.sum_duplicates(np.array([1, -3]), exact_gradients_of(2, 4, seed=1))
    assert shard.bytes() == trained_shard(RULES["adam", False], 5, 4, seed=9).bytes()


def test_arrays_of_other_types_or_shapes_are_refused() -> None:
    shard, gradients = trained_shard(RULES["adagrad", False], 5, 4, seed=10), gradients_of(2, 4, seed=1)
    ids = np.array([0, 1])
    for wrong in (gradients.astype(np.float64), gradients[:1], gradients[:, :3], gradients.ravel()):
        with pytest.raises(ConfigurationError, match=r"gradients of 2 ids must be float32 of shape \(2, 4\)"):
            shard.apply(ids, wrong, lr=0.1)
    with pytest.raises(ConfigurationError, match="ids must be integers"):
        shard.apply(ids.astype(np.float32), gradients, lr=0.1)
    with pytest.raises(ConfigurationError, match=r"gradients of 5 ids must be"):
        shard.apply(None, gradients, lr=0.1)
    with pytest.raises(ConfigurationError, match=r"slot sum must be float32 of shape \(5, 4\)"):
        Shard(shard.rule, shard.weights, {"sum": shard.slots["sum"][:4]}).apply(ids, gradients, lr=0.1)
    with pytest.raises(ConfigurationError, match="adagrad has the slots sum, got none"):
        Shard(shard.rule, shard.weights, {}).apply(ids, gradients, lr=0.1)
    with pytest.raises(ConfigurationError, match="weights must be C-contiguous"):
        Shard(shard.rule, np.zeros((4, 5), np.float32).T, shard.slots).apply(ids, gradients, lr=0.1)
    with pytest.raises(ConfigurationError, match=r"weights must be \[rows, dim\]"):
        Shard(shard.rule, shard.weights.ravel(), shard.slots).apply(ids, gradients, lr=0.1)
    odd = UpdateRule(method=UpdateMethod.ADAM, slots=(SlotSpec(name="sum"),))
    with pytest.raises(ConfigurationError, match="adam does not work with the slots"):
        Shard(odd, shard.weights, shard.slots).apply(ids, gradients, lr=0.1)


def test_new_slots_hold_what_the_optimizer_begins_with() -> None:
    sums = optimize.new_slots(OPTIMIZERS["adagrad"].rule(), 3, 4)["sum"]
    assert sums.shape == (3, 4) and (sums == np.float32(0.1)).all()
    slots = optimize.new_slots(OPTIMIZERS["adam"].rule(), 3, 4)
    assert {name: slot.shape for name, slot in slots.items()} == {"exp_avg": (3, 4), "exp_avg_sq": (3, 4), "step": (3,)}
    assert not any(slot.any() for slot in slots.values())


@pytest.mark.parametrize("kernels", [reference, cpu])
def test_a_rows_count_of_updates_ends_where_float32_counts_no_further(kernels: object) -> None:
    shard = trained_shard(RULES["adam", False], 4, 3, seed=11)
    shard.slots["step"][:] = [2**24 - 2, 2**24, np.nan, -7]
    for _ in range(3):
        shard = apply_with(kernels, shard, np.arange(4), exact_gradients_of(4, 3, seed=1), 0.1)
    assert shard.slots["step"].tolist() == [2**24, 2**24, 3, 3]
    assert np.isfinite(shard.weights).all()


def test_large_ids_are_sorted_in_as_many_passes_as_they_need() -> None:
    draw = np.random.default_rng(12)
    for bits in (1, 10, 11, 12, 22, 23, 40, 62):
        ids = draw.integers(0, 1 << bits, 500)
        wanted, found = (kernels.group(ids, 1 << bits) for kernels in (reference, cpu))
        assert all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))


def run_python(program: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


PROGRAM = """
import sys
if {blocked}: sys.modules["numba"] = None
import numpy as np
from holdfast.kernels import optimize
from holdfast.policy import Adam
rule, weights = Adam(0.01).rule(), np.arange(32, dtype=np.float32).reshape(4, 8)
slots = optimize.new_slots(rule, 4, 8)
optimize.warm_up()
optimize.apply(rule, np.array([2, 0, 2]), weights[:3] / 7, weights, slots, lr=0.01)
print(weights.tobytes().hex(), optimize._kernels().__name__, "torch" in sys.modules)
"""


def test_numpy_serves_where_numba_is_missing_and_nobody_imports_torch() -> None:
    fast, module, torch_came = run_python(PROGRAM.format(blocked=False)).split()
    assert (module, torch_came) == ("holdfast.kernels.optimize.cpu", "False")
    assert run_python(PROGRAM.format(blocked=True)) == f"{fast} holdfast.kernels.optimize.reference False"


@pytest.mark.slow
def test_a_second_process_does_not_compile_again(tmp_path: Path) -> None:
    program = """
from holdfast.kernels.optimize import cpu, grouping
print([sum(kernel.stats.cache_misses.values()) for kernel in (cpu._update, cpu._adam, grouping._sort)])
"""
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[1, 1, 1]"
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 0, 0]"
