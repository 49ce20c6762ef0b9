"""Sums and products of records: NumPy and Numba give the same bytes, and what cannot be added is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernels import galois
from holdfast.kernels.galois import cpu, reference
from holdfast.kernels.runs import Runs

elements = st.integers(0, 255)


def words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 60), st.integers(1, 70), elements, st.integers(0, 2**32))
def test_numba_adds_as_the_reference_does(size: int, count: int, width: int, coefficient: int, seed: int) -> None:
    target, records = words(seed, size, width), words(seed + 1, count, width)
    rows = np.random.default_rng(seed).integers(0, size, count)
    wanted = target.copy()
    reference.add(wanted, rows, records, coefficient)
    cpu.add(target, rows, records, coefficient)
    np.testing.assert_array_equal(target, wanted)
    whole = words(seed + 2, size, width)
    reference.add(wanted, None, whole, coefficient)
    cpu.add(target, None, whole, coefficient)
    np.testing.assert_array_equal(target, wanted)


@st.composite
def runs(draw: st.DrawFn, size: int = 40) -> Runs:
    """That may meet each other, and may be empty."""
    starts = draw(st.lists(st.integers(0, size), max_size=6))
    counts = [draw(st.integers(0, size - start)) for start in starts]
    return Runs(np.array(starts, np.int64), np.array(counts, np.int64))


@settings(deadline=None)
@given(runs(), st.integers(1, 70), elements, st.integers(0, 2**32))
def test_runs_are_added_as_their_rows_are(found: Runs, width: int, coefficient: int, seed: int) -> None:
    records = words(seed, found.size, width)
    wanted = words(seed + 1, 40, width)
    reference.add(wanted, found.rows(), records, coefficient)
    for kernels in (reference, cpu):
        target = words(seed + 1, 40, width)
        kernels.add_runs(target, found, [records], coefficient)
        np.testing.assert_array_equal(target, wanted)
        sums = records.copy()
        kernels.add_from(sums, wanted, found, [])
        np.testing.assert_array_equal(sums, records ^ wanted[found.rows()])


@settings(deadline=None)
@given(runs(), st.integers(0, 10), st.integers(1, 70), elements, st.integers(0, 2**32))
def test_several_records_of_a_row_are_added_as_one_after_another(
    found: Runs, count: int, width: int, coefficient: int, seed: int
) -> None:
    several, source = [words(seed + each, found.size, width) for each in range(count)], words(seed + 10, 40, width)
    wanted, wanted_sums = words(seed + 11, 40, width), words(seed + 12, found.size, width)
    sums = [wanted_sums.copy() for _ in (reference, cpu)]
    targets = [wanted.copy() for _ in (reference, cpu)]
    wanted_sums ^= source[found.rows()]
    for each in several:
        reference.add(wanted, found.rows(), each, coefficient)
        wanted_sums ^= each
    for kernels, target, mine in zip((reference, cpu), targets, sums, strict=True):
        kernels.add_runs(target, found, several, coefficient)
        np.testing.assert_array_equal(target, wanted)
        kernels.add_from(mine, source, found, several)
        np.testing.assert_array_equal(mine, wanted_sums)


def test_runs_outside_and_records_of_another_number_are_refused() -> None:
    target, records = np.zeros((4, 2), np.uint32), np.ones((2, 2), np.uint32)
    for start in (-1, 3):
        outside = Runs(np.array([start]), np.array([2]))
        with pytest.raises(ConfigurationError, match="outside parities of 4 rows"):
            galois.add_runs(target, outside, [records])
        with pytest.raises(ConfigurationError, match="outside parities of 4 rows"):
            galois.add_from(records.copy(), target, outside)
    inside = Runs(np.array([1]), np.array([3]))
    with pytest.raises(ConfigurationError, match="3 records"):
        galois.add_runs(target, inside, [records])
    with pytest.raises(ConfigurationError, match="3 records"):
        galois.add_from(records, target, inside)
    with pytest.raises(ConfigurationError, match="2 runs have 1 lengths"):
        galois.add_from(records, target, Runs(np.array([1, 2]), np.array([2])))
    assert not target.any()


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 2), st.sampled_from([0, 1, 7, 4099]), st.integers(0, 2**32))
def test_numba_encodes_as_the_reference_does(members: int, parities: int, width: int, seed: int) -> None:
    units, wanted, found = words(seed, members, width), words(0, parities, width), words(1, parities, width)
    reference.encode(units, wanted)
    cpu.encode(units, found)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("coefficient", [1, 2, 8, 29, 255])
def test_a_row_that_stands_there_twice_is_added_twice(coefficient: int) -> None:
    target, records = np.zeros((3, 5), np.uint32), words(1, 2, 5)
    galois.add(target, np.array([1, 1]), np.repeat(records[:1], 2, axis=0), coefficient)
    assert not target.any()
    galois.add(target, np.array([1, 1]), records, coefficient)
    np.testing.assert_array_equal(target[1], reference.times(records[:1] ^ records[1:], coefficient)[0])
    assert not target[[0, 2]].any()


@given(elements, elements, elements)
def test_products_are_those_of_a_field(a: int, b: int, c: int) -> None:
    assert galois.multiply(a, b) == galois.multiply(b, a) < 256
    assert galois.multiply(a, galois.multiply(b, c)) == galois.multiply(galois.multiply(a, b), c)
    assert galois.multiply(a, b ^ c) == galois.multiply(a, b) ^ galois.multiply(a, c)
    assert galois.multiply(a, 1) == a and galois.multiply(a, 2) == galois.double(a)


def test_messages_give_records_that_are_read_only_and_unaligned() -> None:
    records, rows = words(3, 2, 5), np.array([2, 0])
    unaligned = np.frombuffer(b"x" + records.tobytes(), np.uint32, offset=1).reshape(2, 5)
    for given_rows in (rows, rows.astype(np.int32), np.frombuffer(b"x" + rows.tobytes(), np.int64, offset=1)):
        found, wanted = np.zeros((3, 5), np.uint32), np.zeros((3, 5), np.uint32)
        galois.add(found, given_rows, unaligned, 3)
        reference.add(wanted, rows, records, 3)
        np.testing.assert_array_equal(found, wanted)


def test_what_cannot_be_added_is_refused_and_changes_nothing() -> None:
    target, records = np.zeros((3, 5), np.uint32), words(4, 2, 5)
    for outside in (-1, 3):
        with pytest.raises(ConfigurationError, match=f"row {outside} is outside parities of 3 rows"):
            galois.add(target, np.array([0, outside]), records)
    with pytest.raises(ConfigurationError, match=r"2 records must be uint32 of shape \(2, 5\)"):
        galois.add(target, np.array([0, 1]), records[:, :4])
    with pytest.raises(ConfigurationError, match="3 records must be uint32"):
        galois.add(target, None, records)
    with pytest.raises(ConfigurationError, match="from 0 to 255, got 256"):
        galois.add(target, np.array([0, 1]), records, 256)
    with pytest.raises(ConfigurationError, match="plain uint32 matrix"):
        galois.add(target.astype(np.int64), np.array([0, 1]), records)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="members must be uint32"):
        galois.encode(records, np.zeros((1, 4), np.uint32))
    assert not target.any()


def test_threads_that_share_a_large_block_give_the_same_sums() -> None:
    starts, counts = np.arange(0, 9000, 90), np.full(100, 64)
    found, records = Runs(starts, counts), words(1, 6400, 300)
    wanted, target = words(2, 9000, 300), words(2, 9000, 300)
    reference.add(wanted, found.rows(), records, 2)
    galois.add_runs(target, found, [records], 2, threads=3)
    np.testing.assert_array_equal(target, wanted)
    sums = records.copy()
    galois.add_from(sums, wanted, found, threads=3)
    np.testing.assert_array_equal(sums, records ^ wanted[found.rows()])
    galois.add(sums, None, records, threads=4)
    np.testing.assert_array_equal(sums, wanted[found.rows()])


@given(runs(), st.integers(1, 5))
def test_shares_of_runs_are_all_of_their_rows(found: Runs, count: int) -> None:
    if found.size < count:
        return
    shares = list(found.shares(count))
    assert np.concatenate([share.rows() for share, _ in shares]).tolist() == found.rows().tolist()
    assert [at.stop - at.start for _, at in shares] == [share.size for share, _ in shares]
    assert all(share.size for share, _ in shares) and shares[-1][1].stop == found.size
