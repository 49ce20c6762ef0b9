"""k-means with centroids that rows share, as Check-N-Run compares it (section 4.2.2): the loss only.

A row that needs its neighbours to be read cannot move alone, so these two are no codecs (docs/design/003-precision.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

ITERATIONS = 15
_AT_ONCE = 4096


def contiguous_blocks(rows: Rows, bits: int, blocks: int) -> Rows:
    """Rows that lie beside each other share their centroids."""
    out = np.empty_like(rows)
    for block in np.array_split(np.arange(len(rows)), blocks):
        out[block] = _cluster(rows[block], bits)
    return out


def clustered_blocks(rows: Rows, bits: int, blocks: int, seed: int = 1) -> Rows:
    """Rows that are like each other share their centroids; which they are, k-means over whole rows says."""
    out = np.empty_like(rows)
    labels = _cluster_rows(rows, blocks, seed)
    for block in np.unique(labels):
        members = labels == block
        out[members] = _cluster(rows[members], bits)
    return out


def _cluster(rows: Rows, bits: int) -> Rows:
    """Lloyd's iterations on all values of these rows, from even steps over their range."""
    values, parts = rows.ravel(), 1 << bits
    low, high = values.min(), values.max()
    centroids = low + (np.arange(parts) + 0.5) / parts * (high - low)
    for _ in range(ITERATIONS):
        nearest = _nearest(values, centroids)
        count, total = (np.bincount(nearest, weights=each, minlength=parts) for each in (None, values))
        centroids = np.where(count > 0, total / np.maximum(count, 1), centroids)
    back: Rows = centroids[_nearest(values, centroids)].astype(np.float32).reshape(rows.shape)
    return back


def _nearest(values: Rows, centroids: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.searchsorted((centroids[1:] + centroids[:-1]) / 2, values)


def _cluster_rows(rows: Rows, clusters: int, seed: int) -> NDArray[np.intp]:
    centers = rows[np.random.default_rng(seed).choice(len(rows), clusters, replace=False)].copy()
    labels = np.zeros(len(rows), dtype=np.intp)
    for _ in range(ITERATIONS):
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            labels[start : start + _AT_ONCE] = ((centers**2).sum(axis=1) - 2 * part @ centers.T).argmin(axis=1)
        sums = np.zeros_like(centers)
        np.add.at(sums, labels, rows)
        counts = np.bincount(labels, minlength=clusters)[:, None]
        centers = np.where(counts > 0, sums / np.maximum(counts, 1), centers).astype(np.float32)
    return labels
