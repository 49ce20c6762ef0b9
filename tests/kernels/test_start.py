"""How rows begin: NumPy and Numba write the same bytes, which depend on key, row and column alone."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.kernels import start
from holdfast.kernels.start import cpu, reference
from holdfast.types import Start, StartKind

NORMAL = Start(kind=StartKind.NORMAL, first=0.0, second=1.0)
UNIFORM = Start(kind=StartKind.UNIFORM, first=-0.25, second=0.75)


def filled(rows: int, width: int, how: Start, *, key: int = 7, first_row: int = 0, threads: int = 1) -> np.ndarray:
    made = np.empty((rows, width), np.float32)
    start.fill(made, how, key=key, first_row=first_row, threads=threads)
    return made


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(0, 9),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**44),
    st.floats(-1e3, 1e3),
    st.floats(0, 1e3),
)
def test_numba_writes_the_bytes_of_the_reference(
    rows: int, width: int, key: int, first_row: int, first: float, second: float
) -> None:
    for name in ("uniform", "normal"):
        one, other = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)
        getattr(cpu, name)(one, np.uint64(key), first_row, first, second)
        getattr(reference, name)(other, np.uint64(key), first_row, first, second)
        assert one.tobytes() == other.tobytes()


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from([NORMAL, UNIFORM]))
def test_a_row_does_not_depend_on_where_its_shard_begins(first: int, more: int, how: Start) -> None:
    whole = filled(100, 6, how)
    np.testing.assert_array_equal(filled(more, 6, how, first_row=first), whole[first : first + more])


def test_threads_change_nothing() -> None:
    np.testing.assert_array_equal(filled(5000, 8, NORMAL, threads=3), filled(5000, 8, NORMAL))


def test_the_inverse_is_that_of_the_normal_distribution() -> None:
    p = (np.arange(0, 2**32, 2**32 // 2000) + 0.5) / 2**32
    expected = np.array([NormalDist().inv_cdf(each) for each in p])
    np.testing.assert_allclose(reference.inverse_normal(p), expected, rtol=1e-8, atol=1e-9)


def test_rows_are_spread_as_declared() -> None:
    normal, uniform = filled(20_000, 16, NORMAL), filled(20_000, 16, UNIFORM)
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01 and 4 < abs(normal).max() < 6.5
    assert uniform.min() >= -0.25 and uniform.max() <= 0.75 and abs(uniform.mean() - 0.25) < 0.01
    assert abs(np.corrcoef(normal[:, 0], normal[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(normal[:-1, 0], normal[1:, 0])[0, 1]) < 0.03
    assert (filled(3, 2, Start(kind=StartKind.CONSTANT, first=2.5)) == 2.5).all()


def test_tables_of_other_names_and_seeds_begin_differently() -> None:
    keys = {start.table_key(seed, name) for seed in (0, 1) for name in ("a", "b")}
    assert len(keys) == 4 and start.table_key(0, "a") == start.table_key(0, "a")
    assert not np.array_equal(filled(4, 4, NORMAL, key=1), filled(4, 4, NORMAL, key=2))


def test_rows_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="writable C-contiguous float32 matrix, got float64"):
        start.fill(np.empty((2, 2)), NORMAL, key=0)  # type: ignore[arg-type]
