"""Rows too short for a record, and rows that are no numbers: stored as they are, and never the reason a save fails."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.codec import Baseline, Codec, Difference
from holdfast.codec.choice import weight_codec
from holdfast.codec.chunk import decode_column, encode_chunk
from holdfast.codec.quantized import Quantized
from holdfast.codec.rows import to_bytes
from holdfast.format.document import canonical_json
from holdfast.types import ColumnSpec
from tests.codec.codec_rows import NUMPY, widened

BITS = st.sampled_from([2, 3, 4, 8])
METHODS = st.sampled_from(["default", "published", "asymmetric", "symmetric", "kmeans"])
NOWHERE = Baseline(checkpoint="s000000000001-t00001-00000001", digest="0" * 64)
ROWS = 6


@st.composite
def narrow_rows(draw: st.DrawFn, dtype: str, dim: int) -> np.ndarray:
    """Ordinary numbers, with any bits at all in a few places."""
    plain = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((ROWS, dim)).astype(np.float32)
    rows = (plain.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else plain.astype(NUMPY[dtype])
    bits = rows.view(f"u{rows.itemsize}")
    odd = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000, "F64": 0x7FF0 << 48}[dtype]  # infinity; more is a NaN
    for row in draw(st.sets(st.integers(0, ROWS - 1), max_size=3)):
        bits[row, draw(st.integers(0, dim - 1))] = draw(
            st.sampled_from([odd, odd + 1, odd | 1 << 8 * rows.itemsize - 1])
        )
    return rows


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.sampled_from(list(NUMPY)), BITS, METHODS, st.booleans())
def test_a_chunk_with_rows_that_are_no_numbers_has_a_finite_loss_and_gives_them_back_bit_for_bit(
    data: st.DataObject, dim: int, dtype: str, bits: int, method: str, difference: bool
) -> None:
    rows = data.draw(narrow_rows(dtype, dim))
    beside = data.draw(narrow_rows(dtype, dim))
    column = ColumnSpec(name="weight", dtype=dtype, row_shape=(dim,))
    codec: Codec | Difference = weight_codec(bits, method)
    if difference:
        assert isinstance(codec, Quantized)
        codec = Difference(inner=codec, baseline=NOWHERE)
    values = {"weight": to_bytes(rows).reshape(-1).data}
    ids = np.arange(ROWS) * 3
    stored = encode_chunk((column,), {"weight": codec}, values, ids, ROWS, beside)
    assert math.isfinite(stored.loss)
    canonical_json(stored.loss)  # what a manifest does with it
    encoded = stored.weights
    back = decode_column(
        column, codec, encoded.records.reshape(-1).data, encoded.escapes.reshape(-1).data, ROWS, beside
    )
    odd = ~_finite(rows, dtype)
    assert back.reshape(ROWS, -1)[odd].tobytes() == to_bytes(rows)[odd].tobytes()
    assert _finite(back.view(NUMPY[dtype]).reshape(ROWS, dim), dtype).tolist() == (~odd).tolist()


@settings(deadline=None)
@given(narrow_rows("F32", 1), BITS)
def test_rows_that_are_stored_as_they_are_lose_nothing(rows: np.ndarray, bits: int) -> None:
    column = ColumnSpec(name="weight", dtype="F32", row_shape=(1,))
    stored = encode_chunk(
        (column,), {"weight": weight_codec(bits)}, {"weight": to_bytes(rows).reshape(-1).data}, None, ROWS
    )
    assert (stored.loss, stored.escapes) == (0.0, (0,))
    assert stored.weights.records.tobytes() == rows.tobytes()


def _finite(rows: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.isfinite(widened(rows, dtype)).all(axis=1)
