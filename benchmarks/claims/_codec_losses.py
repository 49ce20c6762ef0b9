"""What each codec loses: the mean over rows of the l2 norm of the error, as in Check-N-Run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims import _kmeans, _torch_prepack
from holdfast.codec import AdaptiveAsymmetric, Asymmetric, Codec, Fitted, KMeans, Symmetric

Rows = NDArray[np.float32]

SEARCHED = (2, 3, 4)


def codecs(bits: int) -> dict[str, Codec]:
    """Ours, by the names that the figures have."""
    plain: dict[str, Codec] = {"symmetric": Symmetric(bits=bits), "asymmetric": Asymmetric(bits=bits)}
    if bits not in SEARCHED:
        return plain
    searched = {"adaptive": AdaptiveAsymmetric.as_published(bits), "default": Fitted(bits=bits)}
    return {**plain, **searched, "kmeans_vector": KMeans(bits=bits)}


def mean_losses(rows: Rows, searched_rows: int, kmeans_rows: int) -> dict[str, float]:
    """Mean l2 loss by ``<codec>_<bits>bit``."""
    losses = {"row_norm": float(np.linalg.norm(rows, axis=1).mean())}
    for bits in (*SEARCHED, 8):
        for name, codec in codecs(bits).items():
            losses[f"{name}_{bits}bit"] = mean_loss(rows, codec)
        if bits in (2, 4, 8):
            losses[f"torch_{bits}bit"] = _loss(rows, _torch_prepack.unpack(_torch_prepack.pack(rows, bits), bits))
        if bits in (2, 4):
            search = AdaptiveAsymmetric.as_published(bits)
            part = rows[:searched_rows]
            packed = _torch_prepack.pack_searched(part, bits, search.num_bins, search.ratio)
            ratio = _loss(part, _torch_prepack.unpack(packed, bits)) / mean_loss(part, search)
            losses[f"torch_searched_{bits}bit"] = ratio * losses[f"adaptive_{bits}bit"]
        if bits in SEARCHED:
            own = losses[f"kmeans_vector_{bits}bit"]
            shared = _shared_centroids(rows[:kmeans_rows], bits)
            losses |= {f"{name}_{bits}bit": times * own for name, times in shared.items()}
    return losses


def _shared_centroids(rows: Rows, bits: int) -> dict[str, float]:
    """How many times as much k-means over blocks of rows loses as k-means of each row.

    A block for every ten rows; the paper has 100,000 blocks, and models of millions of rows and more.
    """
    blocks, own = len(rows) // 10, mean_loss(rows, KMeans(bits=bits))
    return {
        "kmeans_contiguous": _loss(rows, _kmeans.contiguous_blocks(rows, bits, blocks)) / own,
        "kmeans_clustered": _loss(rows, _kmeans.clustered_blocks(rows, bits, blocks)) / own,
    }


def mean_loss(rows: Rows, codec: Codec) -> float:
    """Of rows that come back from a codec."""
    return _loss(rows, codec.decode(codec.encode(rows), rows.shape[1]))


def _loss(rows: Rows, back: Rows) -> float:
    return float(np.linalg.norm(rows - back, axis=1).mean(dtype=np.float64))
