"""Codecs and rows that the tests of this folder share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast import codec
from holdfast.codec import Codec

QUANTIZED = [
    *(codec.Symmetric(bits=bits) for bits in (2, 3, 4, 8)),
    *(codec.Asymmetric(bits=bits) for bits in (2, 3, 4, 8)),
    *(codec.AdaptiveAsymmetric.as_published(bits) for bits in (2, 3, 4)),
    *(codec.Fitted(bits=bits) for bits in (2, 3, 4)),
    *(codec.KMeans(bits=bits) for bits in (2, 3, 4)),
    *(codec.Logarithmic(bits=bits) for bits in (2, 3, 4, 8)),
]
CODECS: list[Codec] = [codec.Exact(), codec.Rounded(), *QUANTIZED]

NUMPY = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16}


def rows_of(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Any bytes: infinities, NaN and denormals come as often as they like; and rows in one range, as trained ones."""
    shape = st.tuples(st.integers(0, 20), st.integers(1, 70))
    bits = hnp.arrays(np.dtype(f"u{np.dtype(NUMPY[dtype]).itemsize}"), shape)
    if dtype == "BF16":
        return bits
    calm = st.builds(
        lambda shape, seed, scale: (np.random.default_rng(seed).standard_normal(shape) * scale).astype(NUMPY[dtype]),
        shape,
        st.integers(0, 2**32),
        st.sampled_from([1e-3, 1.0, 100.0]),
    )
    return st.one_of(bits.map(lambda array: array.view(NUMPY[dtype])), calm)


def widened(rows: np.ndarray, dtype: str) -> np.ndarray:
    """As float64, exactly."""
    if dtype == "BF16":
        return (rows.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return rows.astype(np.float64)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
