"""Pushes by worker: the last of each, of which all before it are meant as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from holdfast.cluster.core.progress import Progress

Vector: TypeAlias = Mapping[int, int]


def pushed(progress: Mapping[int, Progress]) -> dict[int, int]:
    """The last push of each."""
    return {worker: each.pushed for worker, each in progress.items()}


def joined(one: Vector, other: Vector) -> dict[int, int]:
    """What one or the other holds."""
    return {worker: max(one.get(worker, 0), other.get(worker, 0)) for worker in (*one, *other)}


def holds(one: Vector, pushes: Vector) -> bool:
    """Whether one holds all of these pushes."""
    return all(one.get(worker, 0) >= number for worker, number in pushes.items())


def covers(one: Vector, other: Vector) -> bool:
    """Whether one holds all that the other does, of the workers that it knows."""
    return all(number >= other.get(worker, 0) for worker, number in one.items())
