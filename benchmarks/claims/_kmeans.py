"""k-means quantization as Check-N-Run compares it (section 4.2.2): the loss only, since it is too slow to use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

ITERATIONS = 15
_AT_ONCE = 4096


def per_vector(rows: Rows, bits: int) -> Rows:
    """Each row with the centroids of its own values."""
    parts = [_cluster(rows[start : start + _AT_ONCE], bits) for start in range(0, len(rows), _AT_ONCE)]
    return np.concatenate(parts)


def contiguous_blocks(rows: Rows, bits: int, blocks: int) -> Rows:
    """Rows that lie beside each other share their centroids."""
    out = np.empty_like(rows)
    for block in np.array_split(np.arange(len(rows)), blocks):
        out[block] = _cluster(rows[block].reshape(1, -1), bits).reshape(-1, rows.shape[1])
    return out


def clustered_blocks(rows: Rows, bits: int, blocks: int, seed: int = 1) -> Rows:
    """Rows that are like each other share their centroids; which they are, k-means over whole rows says."""
    out = np.empty_like(rows)
    labels = _cluster_rows(rows, blocks, seed)
    for block in np.unique(labels):
        members = labels == block
        out[members] = _cluster(rows[members].reshape(1, -1), bits).reshape(-1, rows.shape[1])
    return out


def _cluster(rows: Rows, bits: int) -> Rows:
    """Lloyd's iterations on the values of each row, from even steps over its range."""
    share = (np.arange(1 << bits, dtype=np.float32) + np.float32(0.5)) / np.float32(1 << bits)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    centroids = low + share * (high - low)
    for _ in range(ITERATIONS):
        nearest = _nearest(rows, centroids)
        for number in range(1 << bits):
            members = nearest == number
            count = members.sum(axis=1)
            mean = np.where(members, rows, 0).sum(axis=1) / np.maximum(count, 1)
            centroids[:, number] = np.where(count > 0, mean, centroids[:, number])
    return np.take_along_axis(centroids, _nearest(rows, centroids), axis=1)


def _nearest(rows: Rows, centroids: Rows) -> NDArray[np.intp]:
    ordered = np.sort(centroids, axis=1)
    centroids[:] = ordered
    middles = (ordered[:, 1:] + ordered[:, :-1]) / 2
    found = np.zeros(rows.shape, dtype=np.intp)
    for middle in middles.T:
        found += rows > middle[:, None]
    return found


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
