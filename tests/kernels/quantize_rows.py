"""Rows to quantize: like trained ones, and unlike any; without Numba and pytest, which a GPU machine may lack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.quantize import BITS, Method, Scheme

PUBLISHED = {2: (25, 0.5), 3: (25, 0.2), 4: (45, 0.2)}


def schemes() -> list[Scheme]:
    """Every method with every number of bits that it takes."""
    plain = [Scheme(method=method, bits=bits) for method in (Method.SYMMETRIC, Method.ASYMMETRIC) for bits in BITS]
    fitted = [Scheme(method=Method.FITTED, bits=bits) for bits in PUBLISHED]
    greedy = [
        Scheme(method=Method.GREEDY, bits=bits, num_bins=bins, ratio=ratio) for bits, (bins, ratio) in PUBLISHED.items()
    ]
    odd = [Scheme(method=Method.GREEDY, bits=2, num_bins=200, ratio=0.16)]
    kmeans = [Scheme(method=Method.KMEANS, bits=bits, iterations=15) for bits in PUBLISHED]
    odd += [Scheme(method=Method.KMEANS, bits=3, iterations=1)]
    logarithmic = [Scheme(method=Method.LOGARITHMIC, bits=bits) for bits in BITS]
    return [*plain, *fitted, *greedy, *kmeans, *odd, *logarithmic]


def trained_like(count: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Rows of many scales, normal, uniform and with outliers, some of them far from zero."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((count, dim), dtype=np.float32)
    rows[::3] = draw.random((len(rows[::3]), dim), dtype=np.float32) - 0.5
    outliers = draw.random((count, dim), dtype=np.float32) < 0.02
    rows[outliers] *= 6
    rows *= np.exp2(draw.integers(-24, 4, (count, 1))).astype(np.float32) * draw.random((count, 1), dtype=np.float32)
    rows[::17] += rows[::17].std(axis=1, keepdims=True) * 3
    return rows


def unusual(dim: int, seed: int) -> NDArray[np.float32]:
    """Constant rows, zeros of both signs, extremes, denormals, infinities, NaN, far offsets, few distinct values."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((64, dim)).astype(np.float32)
    fills = [0.0, -0.0, 0.1, -3.0, 1e-45, 3.4e38, -3.4e38, np.inf, np.nan]
    for row, value in enumerate(fills):
        rows[row] = value
    for row, value in enumerate(fills, start=len(fills)):
        rows[row, row % dim] = value
    for row, factor in enumerate([1e-45, 1e-38, 1e-30, 1e-18, 1e-17, 1e17, 1e19, 1e30, 3e38], start=20):
        with np.errstate(over="ignore"):
            rows[row] *= np.float32(factor)
    for row, offset in enumerate([10, 60, 70, 1e3, 1e6, -1e2, 1e18], start=30):
        rows[row] += np.float32(offset)
    rows[40] = draw.integers(0, 2, dim)
    rows[41] = draw.integers(0, 4, dim)
    rows[42] = np.linspace(-1, 1, dim)
    rows[43, : dim // 2] = 0
    rows[44:50] = np.abs(rows[44:50])
    rows[46, ::2] = 0
    rows[47] *= np.float32(1e-42)
    rows[48] = np.abs(rows[48]) * np.float32(1e-38)
    rows[49] = np.exp2(np.linspace(-126, 127, dim))
    rows[50] = np.where(rows[50] > 0, np.float32(0), np.float32(-0.0))
    return rows


def rows_for(scheme: Scheme, count: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Both kinds; for a logarithmic grid mostly what is not negative."""
    rows = trained_like(count, dim, seed)
    if scheme.method is Method.LOGARITHMIC:
        np.square(rows[5:], out=rows[5:])
    return np.concatenate([rows, unusual(dim, seed)])
