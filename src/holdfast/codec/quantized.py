"""Codecs that store a row's values in 2, 3, 4 or 8 bits each, with a grid or centroids per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.base import Encoded, Records, Rows
from holdfast.codec.exact import Exact
from holdfast.codec.rows import check_floats, check_rows, from_bytes, from_single, to_bytes, to_single
from holdfast.errors import ConfigurationError, DamagedData
from holdfast.format.dtypes import itemsize
from holdfast.kernels import quantize
from holdfast.kernels.quantize import BITS, ESCAPED, MAX_DIM, Method, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """What all of them share: ``bits`` per value and four bytes per row (two for symmetric grids, more for k-means).

    Half and double precision are quantized as float32 and come back in their own type. A row whose values are all the
    same is kept exactly. So is, as an escape, a row that is not finite, whose values exceed 2⁶⁰, whose range is
    below 2⁻⁶⁰, or, except on symmetric grids, below a 64th of its largest absolute value. Rows so short that a record
    would be longer than the row are stored as they are.
    """

    bits: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ConfigurationError(
                f"{self.bits} bits per value are not supported; use one of {', '.join(map(str, BITS))}"
            )

    @property
    def scheme(self) -> Scheme:
        """The kernels' word for it."""
        raise NotImplementedError

    def parameters(self) -> Mapping[str, int | float | str]:
        return {"bits": self.bits}

    def bytes_per_row(self, dim: int, dtype: str = "F32") -> int:
        check_floats(dtype)
        return min(dim * itemsize(dtype), quantize.record_bytes(self.scheme, dim))

    def encode(self, rows: Rows, dtype: str = "F32", *, threads: int = 1) -> Encoded:
        check_rows(rows, dtype)
        if self.is_exact(rows.shape[1], dtype):
            return Exact().encode(rows, dtype)
        single = to_single(rows, dtype)
        records, escaped = quantize.encode(single, self.scheme, threads=threads)
        if dtype == "F64":
            escaped += _escape_lost(rows, single, records)
        return Encoded(records=records, escapes=escapes_of(rows, records, escaped))

    def decode(self, encoded: Encoded, dim: int, dtype: str = "F32", *, threads: int = 1) -> Rows:
        if self.is_exact(dim, dtype):
            return Exact().decode(encoded, dim, dtype)
        rows = from_single(quantize.decode(encoded.records, self.scheme, dim, threads=threads), dtype)
        put_escapes(rows, encoded, dtype)
        return rows

    def escaped(self, records: Records, dim: int, dtype: str = "F32") -> NDArray[np.bool_]:
        if self.is_exact(dim, dtype):
            return np.zeros(len(records), dtype=np.bool_)
        return is_escaped(records)

    def is_exact(self, dim: int, dtype: str) -> bool:
        """Whether rows so short are stored as they are."""
        if dim > MAX_DIM:
            raise ConfigurationError(f"rows of {dim} values cannot be quantized: the maximum is {MAX_DIM}; use Exact()")
        return self.bytes_per_row(dim, dtype) == dim * itemsize(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetric(Quantized):
    """A grid over ± the largest absolute value. No value is further off than half a step."""

    name: ClassVar[str] = "symmetric"

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.SYMMETRIC, bits=self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asymmetric(Quantized):
    """A grid from the smallest to the largest value. No value is further off than half a step."""

    name: ClassVar[str] = "asymmetric"

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.ASYMMETRIC, bits=self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveAsymmetric(Quantized):
    """Check-N-Run's greedy search for the range with the least squared error (section 4.2.3).

    It gives up a ``num_bins``-th of the range at a time, at either end, while less than ``ratio`` of it is given up.
    """

    num_bins: int
    ratio: float
    name: ClassVar[str] = "adaptive_asymmetric"

    def __post_init__(self) -> None:
        Quantized.__post_init__(self)
        _check_search(self.bits)
        if not 2 <= self.num_bins <= 255 or not 0 <= self.ratio <= 1:
            raise ConfigurationError(
                f"{self.num_bins} bins and ratio {self.ratio} are not valid; pass 2 to 255 bins and a ratio from 0 to 1"
            )

    @classmethod
    def as_published(cls, bits: int) -> AdaptiveAsymmetric:
        """With the paper's parameters; it does not state the ratio for 4 bits, which is that for 3 here."""
        _check_search(bits)
        num_bins, ratio = {2: (25, 0.5), 3: (25, 0.2), 4: (45, 0.2)}[bits]
        return cls(bits=bits, num_bins=num_bins, ratio=ratio)

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.GREEDY, bits=self.bits, num_bins=self.num_bins, ratio=self.ratio)

    def parameters(self) -> Mapping[str, int | float | str]:
        return {"bits": self.bits, "num_bins": self.num_bins, "ratio": self.ratio}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(Quantized):
    """The grid of least squares: for the codes of several ranges, the best scale and zero, then codes for those again.

    Less error than the greedy search in a quarter of its time. For 2, 3 and 4 bits.
    """

    name: ClassVar[str] = "fitted"

    def __post_init__(self) -> None:
        Quantized.__post_init__(self)
        _check_search(self.bits)

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.FITTED, bits=self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logarithmic(Quantized):
    """For numbers that are not negative and whose ratios matter: second moments, sums of squares.

    Zero stays zero. Between the smallest positive value of the row and the largest the steps are even in the bit
    pattern, which is close to the logarithm: over r octaves, a relative error of at most
    1.01·(r + 1/64)/(2·(2^bits − 2)), where that is below 1. Below 2⁻¹²⁶ the error is less than that, absolutely. Rows
    with a negative value, an infinity or a NaN are escapes.
    """

    name: ClassVar[str] = "logarithmic"

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.LOGARITHMIC, bits=self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeans(Quantized):
    """k-means over the values of each row (Check-N-Run, section 4.2.2), for comparison; for 2, 3 and 4 bits.

    On average less error than a grid of as many bits, but the 2^bits centroids stand in each record, a byte each: for
    64 values, 3 bits take the bytes of 4 bits on a grid, and lose more.
    """

    iterations: int = 15
    name: ClassVar[str] = "kmeans"

    def __post_init__(self) -> None:
        Quantized.__post_init__(self)
        if self.bits == 8:
            raise ConfigurationError("k-means with 8 bits has 256 centroids per row; use Asymmetric(bits=8)")
        if not 1 <= self.iterations <= 255:
            raise ConfigurationError(f"{self.iterations} iterations of k-means are not valid; pass 1 to 255")

    @property
    def scheme(self) -> Scheme:
        return Scheme(method=Method.KMEANS, bits=self.bits, iterations=self.iterations)

    def parameters(self) -> Mapping[str, int | float | str]:
        return {"bits": self.bits, "iterations": self.iterations}


def default(bits: int) -> Quantized:
    """The codec with the least error for weights: what the search gains is lost in 8 bits, so there it is plain."""
    return Asymmetric(bits=8) if bits == 8 else Fitted(bits=bits)


def _check_search(bits: int) -> None:
    if bits == 8:
        raise ConfigurationError("searching for the range gains nothing with 8 bits; use Asymmetric(bits=8)")
    if bits not in BITS:
        raise ConfigurationError(f"{bits} bits per value are not supported; use 2, 3 or 4")


def is_escaped(records: Records) -> NDArray[np.bool_]:
    """Which records say that their row is kept elsewhere."""
    flags: NDArray[np.bool_] = (records[:, 0] == ESCAPED & 0xFF) & (records[:, 1] == ESCAPED >> 8)
    return flags


def escapes_of(rows: Rows, records: Records, count: int) -> Records:
    """The bytes of the rows whose records, ``count`` of them, say that they are kept elsewhere."""
    return to_bytes(rows[is_escaped(records)] if count else rows[:0])


def put_escapes(rows: Rows, encoded: Encoded, dtype: str) -> None:
    """Put the rows that are kept exactly in their places."""
    flags = is_escaped(encoded.records)
    wanted, found = int(np.count_nonzero(flags)), len(encoded.escapes)
    if wanted != found:
        raise DamagedData(
            "encoded rows", f"{wanted} records say that their row is stored exactly, but {found} rows are"
        )
    if found:
        rows[flags] = from_bytes(encoded.escapes, dtype)


def _escape_lost(rows: NDArray[Any], single: NDArray[np.float32], records: Records) -> int:
    """Escape rows of doubles that single precision makes constant, unless it holds their value; say how many."""
    constant = (single == single[:, :1]).all(axis=1)
    lost = constant & ~(rows == single).all(axis=1)
    records[lost] = 0
    records[lost, :2] = 0xFF
    return int(np.count_nonzero(lost))
