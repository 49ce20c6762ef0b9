"""How long a whole model takes to encode, beside the five minutes that Check-N-Run allows itself."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.claims._codec_losses import SEARCHED
from benchmarks.claims._codec_speeds import Speed
from benchmarks.report import Figure, Table

PAPER_S, MODEL_BYTES = 300.0, 1e12  # five minutes; models of "terabytes"
CODECS = ("asymmetric", "adaptive", "default", "kmeans_vector")


def rates(speeds: Mapping[str, Speed]) -> dict[str, float]:
    """Bytes per second on one thread, by codec and bits."""
    names = [f"{name}_{bits}bit" for bits in (*SEARCHED, 8) for name in CODECS]
    return {name: speeds[key].encode * 1e9 for name in names if (key := f"{name}_1threads") in speeds}


def time_figures(found: Mapping[str, float]) -> dict[str, Figure]:
    """Cores that encode a terabyte in five minutes."""
    return {f"{name}_cores_for_1TB_in_5_minutes": MODEL_BYTES / PAPER_S / rate for name, rate in found.items()}


def time_table(found: Mapping[str, float]) -> Table:
    """By codec and bits."""
    rows = [
        (name, f"{MODEL_BYTES / rate / 60:,.0f}", f"{MODEL_BYTES / PAPER_S / rate:,.1f}")
        for name, rate in found.items()
    ]
    headers = ("codec", "minutes on one core", "cores for 5 minutes")
    return Table(caption="A model of a terabyte", headers=headers, rows=rows)
