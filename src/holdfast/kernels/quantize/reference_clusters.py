"""k-means of a row's values, in NumPy (see ``reference``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.quantize.scheme import Scheme, first_centroids

Rows = NDArray[np.float32]  # [rows, dim]
Centroids = NDArray[np.float32]  # [rows, 2^bits], ascending


def cluster(units: Rows, scheme: Scheme) -> Centroids:
    """Lloyd's iterations (Check-N-Run, section 4.2.2), from even steps over the range."""
    starts = first_centroids(scheme.bits, units.shape[1])[:, 0]
    centroids = np.repeat(starts[None], len(units), axis=0)
    for _ in range(scheme.iterations):
        _move(centroids, units, nearest(units, centroids))
    return centroids


def nearest(values: Rows, centroids: Centroids) -> NDArray[np.uint8]:
    """Of each value the number of the centroid nearest to it; from the middle, the lower one."""
    codes = np.zeros(values.shape, dtype=np.uint8)
    for middle in ((centroids[:, :-1] + centroids[:, 1:]) * np.float32(0.5)).T:
        codes += values > middle[:, None]
    return codes


def _move(centroids: Centroids, units: Rows, codes: NDArray[np.uint8]) -> None:
    """Each centroid to the mean of the values that have its number, if there are any."""
    for number in range(centroids.shape[1]):
        members = codes == number
        count = np.count_nonzero(members, axis=1).astype(np.float32)
        total = units.sum(axis=1, where=members, dtype=np.float64).astype(np.float32)  # exact, both times
        np.divide(total, count, out=centroids[:, number], where=count > 0)
