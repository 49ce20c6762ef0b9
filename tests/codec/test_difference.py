"""Differences from a baseline: decoded beside that one only, and better than the rows themselves in as many bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import codec
from holdfast.codec import Baseline, Difference, from_json, take, to_json
from holdfast.codec.quantized import Quantized
from holdfast.errors import ConfigurationError, UnsupportedState
from tests.codec.codec_rows import NUMPY, rows_of, same_bytes, widened

BASELINE = Baseline(checkpoint="s000000000001-t00001-00000005", digest="ab" * 32)
INNER = [*(codec.default(bits) for bits in (2, 3, 4, 8)), *(codec.KMeans(bits=bits) for bits in (2, 3, 4))]


def difference(bits: int = 2) -> Difference:
    return Difference(inner=codec.default(bits), baseline=BASELINE)


def test_two_bits_of_difference_are_as_good_as_four_direct() -> None:
    draw = np.random.default_rng(1)
    before = draw.standard_normal((2000, 64), dtype=np.float32)
    after = before + draw.standard_normal((2000, 64), dtype=np.float32) * np.float32(0.2)
    stored = codec.default(8)
    baseline = stored.decode(stored.encode(before), 64)
    encoded = difference(2).encode(after, baseline)
    back = difference(2).decode(encoded, baseline, BASELINE, 64)
    direct = codec.default(4).decode(codec.default(4).encode(after), 64)
    assert np.linalg.norm(after - back, axis=1).mean() < np.linalg.norm(after - direct, axis=1).mean()
    assert encoded.records.shape == (2000, codec.default(2).bytes_per_row(64))


def test_rows_that_did_not_change_are_the_baselines() -> None:
    rows = np.random.default_rng(2).standard_normal((50, 16), dtype=np.float32)
    assert same_bytes(difference().decode(difference().encode(rows, rows), rows, BASELINE, 16), rows)


@pytest.mark.parametrize(
    "other",
    [
        Baseline(checkpoint="s000000000009-t00001-00000005", digest="ab" * 32),
        Baseline(checkpoint=BASELINE.checkpoint, digest="cd" * 32),
    ],
)
def test_another_baseline_is_refused(other: Baseline) -> None:
    rows = np.ones((2, 8), dtype=np.float32)
    encoded = difference().encode(rows, rows)
    with pytest.raises(ConfigurationError, match=f"differences from checkpoint {BASELINE.checkpoint}"):
        difference().decode(encoded, rows, other, 8)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(INNER), st.sampled_from(sorted(NUMPY)), st.data())
def test_any_rows_beside_any_baseline(inner: Quantized, dtype: str, data: st.DataObject) -> None:
    """Rows that are not finite, here or in the baseline, come back exactly; all others finite."""
    rows = data.draw(rows_of(dtype))
    baseline = np.roll(rows, 1, axis=0)
    kind, dim = Difference(inner=inner, baseline=BASELINE), rows.shape[1]
    encoded = kind.encode(rows, baseline, dtype)
    assert encoded.records.shape == (len(rows), kind.bytes_per_row(dim, dtype))
    back = kind.decode(encoded, baseline, BASELINE, dim, dtype)
    single = [widened(side, dtype).astype(np.float32) for side in (rows, baseline)]
    odd = ~(np.isfinite(single[0]) & np.isfinite(single[1])).all(axis=1)
    assert same_bytes(back[odd], rows[odd])
    assert back.dtype == rows.dtype
    assert np.isfinite(widened(back[~odd], dtype)).all()


def test_differences_move_like_other_records() -> None:
    draw = np.random.default_rng(3)
    rows, baseline = draw.standard_normal((20, 12), dtype=np.float32), draw.standard_normal((20, 12), dtype=np.float32)
    rows[[3, 7], 0] = np.nan
    whole = difference().decode(difference().encode(rows, baseline), baseline, BASELINE, 12)
    positions = np.array([7, 1, 3, 3])
    moved = take(difference().inner, difference().encode(rows, baseline), positions, 12)
    assert same_bytes(difference().decode(moved, baseline[positions], BASELINE, 12), whole[positions])


def test_rows_without_their_baseline_rows_are_refused() -> None:
    rows = np.ones((4, 8), dtype=np.float32)
    with pytest.raises(ConfigurationError, match="4 rows against 3"):
        difference().encode(rows, rows[:3])
    with pytest.raises(ConfigurationError, match="4 rows against 5"):
        difference().decode(difference().encode(rows, rows), np.ones((5, 8), dtype=np.float32), BASELINE, 8)


def test_its_json_names_codec_and_baseline() -> None:
    value = json.loads(json.dumps(to_json(difference(4))))
    assert (value["baseline"], value["digest"]) == (BASELINE.checkpoint, BASELINE.digest)
    assert from_json(value) == difference(4)
    with pytest.raises(UnsupportedState, match="'difference'"):
        from_json({**value, "inner": {"name": "exact"}})
