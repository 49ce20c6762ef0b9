"""How values are written on a page. Moments are in UTC: who reads a page need not be where it was made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from rich.filesize import decimal


def size(size_bytes: float) -> str:
    """Bytes."""
    return decimal(int(size_bytes))


def count(number: int) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"


def percent(part: float, whole: float) -> str:
    """A part of a whole."""
    return f"{100 * part / whole:.3g}%" if whole else "-"


def when(seconds: float) -> str:
    """A moment."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """A time span."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"


def number(value: float | None, digits: int = 3) -> str:
    """A measured value."""
    return "-" if value is None else f"{value:.{digits}g}"


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics in one cell."""
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items())


def finite(value: float | None) -> float | None:
    """A value that JSON can hold."""
    return value if value is not None and math.isfinite(value) else None


def how_many(number_of: int, noun: str) -> str:
    """So many of them."""
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"
