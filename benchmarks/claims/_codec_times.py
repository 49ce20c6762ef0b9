"""How long a whole model takes to encode, beside the five minutes that Check-N-Run allows itself."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims import _kmeans
from benchmarks.claims._codec_losses import SEARCHED
from benchmarks.claims._codec_speeds import Speed
from benchmarks.report import Figure, Table

Rows = NDArray[np.float32]

PAPER_S, MODEL_BYTES = 300.0, 1e12  # five minutes; models of "terabytes"
CODECS = ("asymmetric", "adaptive", "default")


def kmeans_rates(rows: Rows) -> dict[str, float]:
    """Bytes per second of k-means for every vector, on one thread, in NumPy."""
    rates = {}
    for bits in SEARCHED:
        started_s = time.perf_counter()
        _kmeans.per_vector(rows, bits)
        rates[f"kmeans_vector_{bits}bit"] = rows.nbytes / (time.perf_counter() - started_s)
    return rates


def rates(speeds: Mapping[str, Speed], kmeans: Mapping[str, float]) -> dict[str, float]:
    """Bytes per second on one thread, by codec and bits."""
    names = [f"{name}_{bits}bit" for bits in (*SEARCHED, 8) for name in CODECS]
    ours = {name: speeds[key].encode * 1e9 for name in names if (key := f"{name}_1threads") in speeds}
    return {**ours, **kmeans}


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
