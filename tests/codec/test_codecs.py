"""What holds for every codec: fixed bytes per row, errors as stated, exactness where there is no grid, moves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import codec
from holdfast.codec import Codec, Encoded, concatenate, from_json, take, to_json
from holdfast.codec.choice import weight_codec
from holdfast.errors import ConfigurationError, DamagedData, UnsupportedState
from tests.codec.codec_rows import CODECS, NUMPY, QUANTIZED, rows_of, same_bytes, widened


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(CODECS), st.sampled_from(sorted(NUMPY)).flatmap(lambda t: st.tuples(st.just(t), rows_of(t))))
def test_every_row_has_its_bytes_and_comes_back_in_its_type(kind: Codec, case: tuple[str, np.ndarray]) -> None:
    dtype, rows = case
    dim = rows.shape[1]
    encoded = kind.encode(rows, dtype)
    assert encoded.records.shape == (len(rows), kind.bytes_per_row(dim, dtype))
    assert encoded.escapes.shape[1] == dim * rows.itemsize
    back = kind.decode(encoded, dim, dtype)
    assert (back.dtype, back.shape) == (rows.dtype, rows.shape)
    flags = kind.escaped(encoded.records, dim, dtype)
    assert np.count_nonzero(flags) == len(encoded.escapes)
    assert same_bytes(back[flags], rows[flags])
    as_it_is = kind.name in ("exact", "rounded") or kind.bytes_per_row(dim, dtype) == dim * rows.itemsize
    assert as_it_is or np.isfinite(widened(back[~flags], dtype)).all()


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(QUANTIZED), st.sampled_from(["F32", "F64", "F16", "BF16"]), st.data())
def test_rows_of_one_value_come_back_exactly(kind: Codec, dtype: str, data: st.DataObject) -> None:
    rows = data.draw(rows_of(dtype))
    rows = np.repeat(rows[:, :1], rows.shape[1], axis=1)
    back = kind.decode(kind.encode(rows, dtype), rows.shape[1], dtype)
    equal = widened(back, dtype) == widened(rows, dtype)  # -0.0 may come back as 0.0
    assert (equal | np.isnan(widened(rows, dtype))).all()


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([c for c in QUANTIZED if c.name in ("symmetric", "asymmetric")]), rows_of("F32"))
def test_plain_grids_are_never_off_by_more_than_half_a_step(kind: Codec, rows: np.ndarray) -> None:
    rows = rows[np.isfinite(rows).all(axis=1)]
    encoded = kind.encode(rows)
    plain = ~kind.escaped(encoded.records, rows.shape[1])
    exact = rows[plain].astype(np.float64)
    if not exact.size:
        return
    error = np.abs(kind.decode(encoded, rows.shape[1])[plain] - exact).max(axis=1)
    top = 2**kind.bits - 1
    spread = exact.max(axis=1) - exact.min(axis=1)
    reach = 2 * np.abs(exact).max(axis=1) if kind.name == "symmetric" else spread + np.abs(exact).max(axis=1) / 128
    assert (error <= reach / top / 2 * 1.01 + np.abs(exact).max(axis=1) * 2**-22).all()


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([c for c in QUANTIZED if c.name == "logarithmic"]), rows_of("F32"))
def test_logarithmic_grids_keep_zero_and_the_stated_relative_error(kind: Codec, rows: np.ndarray) -> None:
    rows = np.abs(rows[np.isfinite(rows).all(axis=1)])
    encoded = kind.encode(rows)
    plain = ~kind.escaped(encoded.records, rows.shape[1])
    exact = rows[plain].astype(np.float64)
    back = kind.decode(encoded, rows.shape[1])[plain].astype(np.float64)
    assert ((exact == 0) == (back == 0)).all()
    for row, found in zip(exact, back, strict=True):
        positive = row > 0
        octaves = np.log2(row[positive].max() / max(row[positive].min(), 2.0**-126)) if positive.any() else 0
        bound = (octaves + 1 / 64) / (2 * (2**kind.bits - 2)) * 1.01  # ends and step are rounded to half precision
        assert bound > 1 or (np.abs(found - row) <= bound * row + 2.0**-126).all()


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([2, 3, 4]), rows_of("F32"))
def test_kmeans_gives_every_value_the_nearest_centroid_of_its_record(bits: int, rows: np.ndarray) -> None:
    kind, dim = codec.KMeans(bits=bits), rows.shape[1]
    if kind.is_exact(dim, "F32"):
        return
    encoded = kind.encode(rows)
    records = encoded.records
    fields = np.ascontiguousarray(records[:, :4]).view("<u2").astype(np.uint32)
    grid = (fields[:, 0] != 0) & (fields[:, 0] != 0xFFFF)
    scale, zero = (fields[grid, :1] << 15).view(np.float32), (fields[grid, 1:] << 16).view(np.float32)
    centroids = zero + scale * records[grid, 4 : 4 + (1 << bits)].astype(np.float32)
    exact = rows[grid].astype(np.float64)
    least = np.abs(exact[:, :, None] - centroids[:, None, :]).min(axis=2)
    error = np.abs(exact - kind.decode(encoded, dim)[grid])
    assert (error <= least + np.abs(exact).max(axis=1, keepdims=True, initial=0) * 2**-20).all()
    assert (np.diff(centroids, axis=1) >= 0).all()


@settings(deadline=None)
@given(rows_of("F32"))
def test_rounding_keeps_a_256th_and_what_is_not_finite(rows: np.ndarray) -> None:
    back = codec.Rounded().decode(codec.Rounded().encode(rows), rows.shape[1])
    finite = np.isfinite(rows)
    assert (np.isfinite(back) == finite).all() and (np.isnan(back) == np.isnan(rows)).all()
    assert (np.sign(back[np.isinf(rows)]) == np.sign(rows[np.isinf(rows)])).all()
    exact = rows[finite].astype(np.float64)
    assert (np.abs(back[finite] - exact) <= np.abs(exact) / 256 + 2.0**-134).all()


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(CODECS), rows_of("F32"), st.data())
def test_records_move_without_being_decoded(kind: Codec, rows: np.ndarray, data: st.DataObject) -> None:
    dim = rows.shape[1]
    encoded, whole = kind.encode(rows), kind.decode(kind.encode(rows), dim)
    positions = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30) if len(rows) else st.just([])))
    moved = take(kind, encoded, positions.astype(np.int64), dim)
    assert same_bytes(kind.decode(moved, dim), whole[positions.astype(np.int64)])
    joined = concatenate([moved, encoded])
    assert same_bytes(kind.decode(joined, dim), np.concatenate([whole[positions.astype(np.int64)], whole]))
    assert joined.size_bytes == moved.size_bytes + encoded.size_bytes


@pytest.mark.parametrize("kind", CODECS, ids=str)
def test_a_codec_is_its_json(kind: Codec) -> None:
    text = json.dumps(to_json(kind))
    assert from_json(json.loads(text)) == kind


@pytest.mark.parametrize(
    "value",
    [
        {"name": "fitted"},
        {"name": "fitted", "bits": 5},
        {"name": "fitted", "bits": 2, "more": 1},
        {"name": "exact", "bits": 2},
        {"name": "kmeans", "bits": 2},
        {"name": "kmeans", "bits": 8, "iterations": 15},
        {"name": "wavelet"},
        {},
    ],
)
def test_a_codec_that_is_not_known_is_refused_by_name(value: dict[str, object]) -> None:
    with pytest.raises(UnsupportedState, match=repr(value.get("name"))):
        from_json(value)


@pytest.mark.parametrize(
    ("bits", "dim", "size_bytes"),
    [
        (2, 64, 20),
        (3, 64, 28),
        (4, 64, 36),
        (8, 64, 68),
        (2, 63, 20),
        (3, 63, 28),
        (3, 5, 7),
        (2, 1024, 260),
        (3, 8, 7),
    ],
)
def test_bytes_per_row(bits: int, dim: int, size_bytes: int) -> None:
    assert codec.Asymmetric(bits=bits).bytes_per_row(dim) == size_bytes
    assert codec.Symmetric(bits=bits).bytes_per_row(dim) == max(6, size_bytes - 2)


@pytest.mark.parametrize(("bits", "dim", "size_bytes"), [(2, 64, 24), (3, 64, 36), (4, 64, 52), (3, 5, 15), (4, 5, 20)])
def test_bytes_per_row_with_centroids(bits: int, dim: int, size_bytes: int) -> None:
    assert codec.KMeans(bits=bits).bytes_per_row(dim) == size_bytes


def test_rows_too_short_for_a_record_are_kept_as_they_are() -> None:
    for dim, dtype in ((1, "F32"), (3, "BF16"), (2, "F16")):
        rows = np.arange(dim * 4, dtype=NUMPY[dtype]).reshape(4, dim)
        for kind in QUANTIZED:
            encoded = kind.encode(rows, dtype)
            assert kind.bytes_per_row(dim, dtype) == dim * rows.itemsize
            assert same_bytes(kind.decode(encoded, dim, dtype), rows)
            assert not kind.escaped(encoded.records, dim, dtype).any()


def test_doubles_that_single_precision_would_merge_are_kept_exactly() -> None:
    rows = np.array([[1.0, 1.0 + 2**-40] * 8, [2**-200, 2**-300] * 8, [0.1] * 16, [1e300] * 16, [0.5] * 16])
    for kind in QUANTIZED:
        encoded = kind.encode(rows, "F64")
        assert same_bytes(kind.decode(encoded, 16, "F64"), rows)
        assert len(encoded.escapes) == 4


def test_missing_escapes_are_noticed() -> None:
    kind = codec.Fitted(bits=2)
    encoded = kind.encode(np.full((3, 8), np.nan, dtype=np.float32))
    with pytest.raises(DamagedData, match=r"3 records say .* but 1 rows are"):
        kind.decode(Encoded(records=encoded.records, escapes=encoded.escapes[:1]), 8)


@pytest.mark.parametrize("dtype", ["I64", "BOOL", "F8_E5M2"])
def test_only_floating_point_numbers_lose_precision(dtype: str) -> None:
    rows = np.ones((2, 4), dtype={"I64": np.int64, "BOOL": np.bool_, "F8_E5M2": np.uint8}[dtype])
    assert codec.Exact().encode(rows, dtype).records.tobytes() == rows.tobytes()
    with pytest.raises(ConfigurationError, match=r"use Exact\(\)"):
        codec.Fitted(bits=2).encode(rows, dtype)


def test_wrong_arguments_are_told() -> None:
    for call, match in (
        (lambda: codec.Fitted(bits=8), "gains nothing"),
        (lambda: codec.Asymmetric(bits=5), "5 bits"),
        (lambda: codec.AdaptiveAsymmetric(bits=2, num_bins=1, ratio=0.5), "1 bins"),
        (lambda: codec.AdaptiveAsymmetric(bits=2, num_bins=25, ratio=2), "ratio 2"),
        (lambda: codec.KMeans(bits=8), "256 centroids"),
        (lambda: codec.KMeans(bits=2, iterations=0), "0 iterations"),
        (lambda: weight_codec(2, "median"), "unknown method 'median'"),
        (lambda: codec.Fitted(bits=2).encode(np.zeros(4, dtype=np.float32)), "matrix"),
        (lambda: codec.Fitted(bits=2).encode(np.zeros((4, 4))), "array of float64"),
        (lambda: codec.Fitted(bits=2).encode(np.zeros((1, 20000), dtype=np.float32)), "maximum is 16384"),
        (lambda: concatenate([]), "nothing to concatenate"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            call()


def test_the_default_searches_where_that_pays() -> None:
    assert [codec.default(bits).name for bits in (2, 3, 4, 8)] == ["fitted", "fitted", "fitted", "asymmetric"]
    for method in ("published", "kmeans"):  # what differences stand on, and what Auto falls back to, has 8
        assert weight_codec(8, method) == codec.Asymmetric(bits=8)
