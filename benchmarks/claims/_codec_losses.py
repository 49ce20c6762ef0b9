"""What each codec loses: the mean over rows of the l2 norm of the error, as in Check-N-Run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims import _kmeans, _torch_prepack
from benchmarks.report import Table
from holdfast.codec import AdaptiveAsymmetric, Asymmetric, Codec, Fitted, Symmetric

Rows = NDArray[np.float32]

SEARCHED = (2, 3, 4)


def codecs(bits: int) -> dict[str, Codec]:
    """Ours, by the names that the figures have."""
    plain: dict[str, Codec] = {"symmetric": Symmetric(bits=bits), "asymmetric": Asymmetric(bits=bits)}
    if bits not in SEARCHED:
        return plain
    return {**plain, "adaptive": AdaptiveAsymmetric.as_published(bits), "default": Fitted(bits=bits)}


def mean_losses(rows: Rows, searched_rows: int, kmeans_rows: int) -> dict[str, float]:
    """Mean l2 loss by ``<codec>_<bits>bit``."""
    losses = {"row_norm": float(np.linalg.norm(rows, axis=1).mean())}
    for bits in (*SEARCHED, 8):
        for name, codec in codecs(bits).items():
            losses[f"{name}_{bits}bit"] = _loss(rows, codec.decode(codec.encode(rows), rows.shape[1]))
        if bits in (2, 4, 8):
            losses[f"torch_{bits}bit"] = _loss(rows, _torch_prepack.unpack(_torch_prepack.pack(rows, bits), bits))
        if bits in (2, 4):
            search = AdaptiveAsymmetric.as_published(bits)
            part = rows[:searched_rows]
            packed = _torch_prepack.pack_searched(part, bits, search.num_bins, search.ratio)
            ours = _loss(part, search.decode(search.encode(part), rows.shape[1]))
            ratio = _loss(part, _torch_prepack.unpack(packed, bits)) / ours
            losses[f"torch_searched_{bits}bit"] = ratio * losses[f"adaptive_{bits}bit"]
        if bits in SEARCHED:
            losses |= _kmeans_losses(rows[:kmeans_rows], bits)
    return losses


def _kmeans_losses(rows: Rows, bits: int) -> dict[str, float]:
    """A block for every ten rows; the paper has 100,000 blocks, and models of millions of rows and more."""
    blocks = len(rows) // 10
    return {
        f"kmeans_vector_{bits}bit": _loss(rows, _kmeans.per_vector(rows, bits)),
        f"kmeans_contiguous_{bits}bit": _loss(rows, _kmeans.contiguous_blocks(rows, bits, blocks)),
        f"kmeans_clustered_{bits}bit": _loss(rows, _kmeans.clustered_blocks(rows, bits, blocks)),
    }


def _loss(rows: Rows, back: Rows) -> float:
    return float(np.linalg.norm(rows - back, axis=1).mean(dtype=np.float64))


def sweep(rows: Rows, bits: int) -> Table:
    """Figures 6 and 7: what the search gains over smallest to largest value, by bins and by ratio."""
    plain = Asymmetric(bits=bits)
    base = _loss(rows, plain.decode(plain.encode(rows), rows.shape[1]))
    ratios = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    table = []
    for bins in (5, 10, 15, 25, 45, 100):
        gains = []
        for ratio in ratios:
            codec = AdaptiveAsymmetric(bits=bits, num_bins=bins, ratio=ratio)
            gains.append(f"{1 - _loss(rows, codec.decode(codec.encode(rows), rows.shape[1])) / base:.1%}")
        table.append((bins, *gains))
    fitted = Fitted(bits=bits)
    gain = 1 - _loss(rows, fitted.decode(fitted.encode(rows), rows.shape[1])) / base
    caption = f"Gain of the greedy search in {bits} bits, by bins and ratio (the default codec: {gain:.1%})"
    return Table(caption=caption, headers=("bins", *(f"ratio {ratio}" for ratio in ratios)), rows=table)
