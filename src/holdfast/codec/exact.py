"""Codecs without a grid: bytes unchanged, and numbers in two bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.base import Encoded, Records, Rows
from holdfast.codec.rows import check_rows, from_bytes, round_to_bf16, to_bytes, to_single
from holdfast.format.dtypes import itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The bytes as they are, of any type. No error, no escapes."""

    name: ClassVar[str] = "exact"

    def parameters(self) -> Mapping[str, int | float | str]:
        return {}

    def bytes_per_row(self, dim: int, dtype: str = "F32") -> int:
        return dim * itemsize(dtype)

    def encode(self, rows: Rows, dtype: str = "F32", *, threads: int = 1) -> Encoded:
        check_rows(rows, dtype)
        return without_escapes(to_bytes(rows), rows.shape[1], dtype)

    def decode(self, encoded: Encoded, dim: int, dtype: str = "F32", *, threads: int = 1) -> Rows:
        return from_bytes(encoded.records, dtype)

    def escaped(self, records: Records, dim: int, dtype: str = "F32") -> NDArray[np.bool_]:
        return np.zeros(len(records), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """float32 numbers in two bytes, as bfloat16: a relative error of at most 2⁻⁸ (1/256); all other types as they are.

    For slots of one number per row, which have no range to lay a grid over. Infinities and NaN stay what they are.
    """

    name: ClassVar[str] = "rounded"

    def parameters(self) -> Mapping[str, int | float | str]:
        return {}

    def bytes_per_row(self, dim: int, dtype: str = "F32") -> int:
        return dim * (2 if dtype == "F32" else itemsize(dtype))

    def encode(self, rows: Rows, dtype: str = "F32", *, threads: int = 1) -> Encoded:
        check_rows(rows, dtype)
        return without_escapes(to_bytes(round_to_bf16(rows) if dtype == "F32" else rows), rows.shape[1], dtype)

    def decode(self, encoded: Encoded, dim: int, dtype: str = "F32", *, threads: int = 1) -> Rows:
        if dtype == "F32":
            return to_single(from_bytes(encoded.records, "BF16"), "BF16")
        return from_bytes(encoded.records, dtype)

    def escaped(self, records: Records, dim: int, dtype: str = "F32") -> NDArray[np.bool_]:
        return np.zeros(len(records), dtype=np.bool_)


def without_escapes(records: Records, dim: int, dtype: str) -> Encoded:
    """Rows that all have a record."""
    return Encoded(records=records, escapes=np.empty((0, dim * itemsize(dtype)), dtype=np.uint8))
