"""What every implementation of a quantizer shares: the record's layout and the numbers of its search.

docs/spec/codec.md fixes both. All search constants are computed here, once, on the host, so that no implementation can
round them differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray

BITS = (2, 3, 4, 8)
MAX_DIM = 16384  # above it, the search's sums would not be exact in single precision
SMALLEST, LARGEST = 2.0**-60, 2.0**60  # a row's range and its values; beyond, squares leave single precision
OFFSET_SHARE = 2.0**-6  # a range below this share of the largest value drowns in the zero point's rounding

CONSTANT, ESCAPED = 0x0000, 0xFFFF  # scale fields that no grid has
CONSTANT_BYTES = 6  # the scale field and a float32
CENTROIDS_AT = 4  # behind scale and zero point
GRID_TOP = 255  # of the grid that centroids lie on

_EXACT = 2**24  # integers that single precision holds
_FINEST = 10  # bits of a value in the search
KEPT = 0xFFFF_F800  # of a slope: the 13 leading bits of a float32's significand: times 10 bits, that is exact


class Method(Enum):
    """How a row's range is chosen."""

    SYMMETRIC = "symmetric"  # ± the largest absolute value
    ASYMMETRIC = "asymmetric"  # from the smallest to the largest value
    GREEDY = "greedy"  # Check-N-Run's search
    FITTED = "fitted"  # least squares from several starts
    LOGARITHMIC = "logarithmic"  # for what is not negative: equal steps of the logarithm, about
    KMEANS = "kmeans"  # no grid of codes: a code is the number of a centroid


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A quantizer: method, bits per value, and the parameters of the greedy search and of k-means."""

    method: Method
    bits: int
    num_bins: int = 0
    ratio: float = 0.0
    iterations: int = 0

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def header_bytes(self) -> int:
        """Scale and, unless it follows from the scale, zero point; then the centroids, where there are some."""
        if self.method is Method.KMEANS:
            return CENTROIDS_AT + (1 << self.bits)
        return 2 if self.method is Method.SYMMETRIC else 4

    @property
    def steps(self) -> int:
        """Steps of the greedy search: it goes on while the part of the range given up is below its ratio."""
        return min(math.ceil(self.ratio * self.num_bins - 1e-9), self.num_bins - 1)


def stripe(dim: int, bits: int) -> int:
    """Bytes of the plane of whole bytes, 4-bit codes, or low 2-bit codes: value ``i`` is in byte ``i mod stripe``."""
    per_byte = {8: 1, 4: 2, 3: 4, 2: 4}[bits]
    return -(-dim // per_byte)


def code_bytes(dim: int, bits: int) -> int:
    """Bytes of one row's codes; three bits are a plane of two and half as many bytes of one."""
    width = stripe(dim, bits)
    return width + (width + 1) // 2 if bits == 3 else width


def record_bytes(scheme: Scheme, dim: int) -> int:
    """Bytes of one row: header and codes, and room for a constant row's value."""
    return max(CONSTANT_BYTES, scheme.header_bytes + code_bytes(dim, scheme.bits))


def resolution(dim: int) -> int:
    """The integer that the top of a row's range becomes in the search, so small that all its sums are exact."""
    return (1 << min(_FINEST, _FINEST + 10 - (dim - 1).bit_length())) - 1


# Parts of the range given up below and above. Selected one after another for the least mean loss over normal rows with
# and without outliers, Student's t, uniform rows and rows of DLRMs trained with SGD and Adagrad. Longer rows have
# longer tails, so their starts lie further in; very long ones need more of them.
_SHORT = {
    2: ((0.14, 0.14), (0.08, 0.2), (0.2, 0.08)),
    3: ((0.05, 0.05), (0.1, 0.025), (0.025, 0.1)),
    4: ((0.015, 0.015), (0.005, 0.04), (0.04, 0.005)),
}
_MEDIUM = {
    2: ((0.15, 0.15), (0.12, 0.24), (0.24, 0.12)),
    3: ((0.06, 0.06), (0.04, 0.12), (0.12, 0.04)),
    4: ((0.02, 0.02), (0.01, 0.05), (0.05, 0.01)),
}
_LONG = {
    2: (*_SHORT[2], (0.2, 0.3), (0.3, 0.2)),
    3: (*_SHORT[3], (0.1, 0.1), (0.15, 0.15), (0.1, 0.2)),
    4: (*_SHORT[4], (0.05, 0.05), (0.03, 0.08), (0.08, 0.03), (0.1, 0.1)),
}
_SHORT_DIM, _MEDIUM_DIM = 64, 128  # the longest of each
REFITS = 2


@cache
def starts(bits: int, dim: int) -> NDArray[np.float32]:
    """``[start, 2]``: slope and shift of the grids that a fit starts from; code = slope·u + shift, rounded."""
    shares = (_SHORT if dim <= _SHORT_DIM else _MEDIUM if dim <= _MEDIUM_DIM else _LONG)[bits]
    finest, top = resolution(dim), (1 << bits) - 1
    slopes = [_slope(top / (finest * (1 - (below + above)))) for below, above in shares]
    shifts = [-below * finest * slope for (below, _), slope in zip(shares, slopes, strict=True)]
    return np.array([slopes, shifts], dtype=np.float32).T.copy()


@cache
def greedy_lines(scheme: Scheme, dim: int) -> NDArray[np.float32]:
    """``[bins given up in all, 2]``: slope, and what each bin given up below takes away from the shift."""
    finest, bins = resolution(dim), scheme.num_bins
    slopes = [_slope(scheme.top / (finest * (1 - both / bins))) for both in range(scheme.steps + 1)]
    return np.array([slopes, [finest * slope / bins for slope in slopes]], dtype=np.float32).T.copy()


@cache
def first_centroids(bits: int, dim: int) -> NDArray[np.float32]:
    """``[centroid, 1]``: the middles of as many equal parts of the range, in units."""
    parts = 1 << bits
    middles = [[(2 * part + 1) * resolution(dim) / (2 * parts)] for part in range(parts)]
    return np.array(middles, dtype=np.float32)  # exact


def _slope(value: float) -> float:
    """Cut to so few bits that its products with units are exact."""
    bits = np.array(value, dtype=np.float32).view(np.uint32) & np.uint32(KEPT)
    return float(bits.view(np.float32))
