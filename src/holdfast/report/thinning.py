"""Reduces the points of a chart so that it stays small and still shows every extreme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.report.words import count

MOST_DRAWN = 400

T = TypeVar("T")


def thinned(points: Sequence[T], value: Callable[[T], float], most: int = MOST_DRAWN) -> list[T]:
    """At most this many points, in order: the smallest and the largest of each group of neighbours."""
    if len(points) <= most:
        return list(points)
    width = math.ceil(len(points) / (most // 2))
    return [
        point for first in range(0, len(points), width) for point in _extremes(points[first : first + width], value)
    ]


def told_of_thinning(points: int) -> list[str]:
    """The note above charts of this many checkpoints, if any."""
    if points <= MOST_DRAWN:
        return []
    return [
        f"Charts show at most {MOST_DRAWN} of {count(points)} checkpoints: of neighbours, the smallest and the "
        "largest. The tables list all."
    ]


def _extremes(group: Sequence[T], value: Callable[[T], float]) -> list[T]:
    places = sorted(range(len(group)), key=lambda place: value(group[place]))
    return [group[place] for place in sorted({places[0], places[-1]})]
