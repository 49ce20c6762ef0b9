"""What the greedy search gains, by its bins and its ratio (Check-N-Run, figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims._codec_losses import mean_loss
from benchmarks.report import Figure, Table
from holdfast.codec import AdaptiveAsymmetric, Asymmetric, Fitted

Rows = NDArray[np.float32]
Gains = Mapping[tuple[int, float], float]  # by bins and ratio

BINS = (5, 10, 15, 25, 45, 100)
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def gains(rows: Rows, bits: int) -> Gains:
    """The share of the loss of a range from the smallest to the largest value that the search saves."""
    plain = mean_loss(rows, Asymmetric(bits=bits))
    codecs = {
        (bins, ratio): AdaptiveAsymmetric(bits=bits, num_bins=bins, ratio=ratio) for bins in BINS for ratio in RATIOS
    }
    return {point: 1 - mean_loss(rows, codec) / plain for point, codec in codecs.items()}


def default_gain(rows: Rows, bits: int) -> float:
    """The same for the default codec, which has neither bins nor a ratio."""
    return 1 - mean_loss(rows, Fitted(bits=bits)) / mean_loss(rows, Asymmetric(bits=bits))


def sweep_figures(found: Gains, bits: int) -> dict[str, Figure]:
    """Figure 6 with the whole range searched, figure 7 with the paper's bins."""
    paper = AdaptiveAsymmetric.as_published(bits).num_bins
    by_bins = {f"greedy_gain_{bits}bit_bins_{bins}": found[bins, 1.0] for bins in BINS}
    by_ratio = {f"greedy_gain_{bits}bit_ratio_{ratio}": found[paper, ratio] for ratio in RATIOS}
    return {**by_bins, **by_ratio}


def sweep_table(found: Gains, bits: int, default: float) -> Table:
    """All of it."""
    caption = f"Gain of the greedy search in {bits} bits, by bins and ratio (the default codec: {default:.1%})"
    rows: list[Sequence[Figure]] = [(bins, *(f"{found[bins, ratio]:.1%}" for ratio in RATIOS)) for bins in BINS]
    return Table(caption=caption, headers=("bins", *(f"ratio {ratio}" for ratio in RATIOS)), rows=rows)
