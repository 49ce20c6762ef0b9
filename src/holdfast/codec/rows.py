"""Rows of any floating-point type as float32 rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import itemsize

_NUMPY = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16}
_LARGEST_BF16 = np.uint32(0x7F7F)


def check_rows(rows: NDArray[Any], dtype: str) -> None:
    """They are a matrix of what ``dtype`` says."""
    if rows.ndim != 2 or not rows.shape[1]:
        raise ConfigurationError(f"rows must be a matrix of one value or more per row, not of shape {rows.shape}")
    wanted = _NUMPY.get(dtype)
    if (wanted is not None and rows.dtype != wanted) or rows.itemsize != itemsize(dtype):
        raise ConfigurationError(f"rows of type {dtype} cannot come in an array of {rows.dtype}")


def is_float(dtype: str) -> bool:
    """Whether a lossy codec takes values of this type."""
    return dtype in _NUMPY


def check_floats(dtype: str) -> None:
    """A lossy codec takes floating-point numbers only."""
    if not is_float(dtype):
        raise ConfigurationError(
            f"values of type {dtype} can only be stored exactly: use Exact() for them; other codecs are for "
            f"{', '.join(_NUMPY)}"
        )


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The type of an array of such values; of those that NumPy lacks, unsigned integers of their size."""
    return np.dtype(_NUMPY.get(dtype, f"u{itemsize(dtype)}" if itemsize(dtype) <= 8 else "V"))


def to_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """The rows as raw bytes: ``[rows, bytes of a row]``."""
    flat = np.ascontiguousarray(rows)
    return flat.view(np.uint8).reshape(len(rows), rows.shape[1] * rows.itemsize)


def from_bytes(data: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Rows from their raw bytes."""
    return np.ascontiguousarray(data).view(numpy_type(dtype))


def to_single(rows: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """float32, contiguous. Exact for 16 bits; 64 bits are rounded to the nearest."""
    if dtype == "BF16":
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # signalling NaNs, too
        return np.ascontiguousarray(rows, dtype=np.float32)


def from_single(rows: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The nearest values of ``dtype``; what is finite stays so."""
    if dtype == "F32":
        return rows
    if dtype == "BF16":
        return round_to_bf16(rows)
    with np.errstate(over="ignore"):
        rounded = rows.astype(_NUMPY[dtype])
    if dtype == "F16":
        largest = np.finfo(np.float16).max
        rounded = np.where(np.isfinite(rows), np.clip(rounded, -largest, largest), rounded)
    return rounded


def round_to_bf16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To the nearest, even ones from the middle; no finite number becomes infinite, NaN stays NaN."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    magnitude, sign = bits & np.uint32(0x7FFF_FFFF), (bits >> np.uint32(16)) & np.uint32(0x8000)
    odd = (magnitude >> np.uint32(16)) & np.uint32(1)
    rounded = np.minimum((magnitude + np.uint32(0x7FFF) + odd) >> np.uint32(16), _LARGEST_BF16)
    special = (magnitude >> np.uint32(16)) | (magnitude > np.uint32(0x7F80_0000)) * np.uint32(0x40)
    finite = magnitude < np.uint32(0x7F80_0000)
    found: NDArray[np.uint32] = np.where(finite, rounded, special) | sign
    return found.astype(np.uint16)
