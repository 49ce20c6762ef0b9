"""Boxes: the part of a tensor that begins at some element and has some size in each dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Elements ``offsets[i] .. offsets[i] + sizes[i]`` of each dimension; empty where a size is 0."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """All of a tensor."""
        return cls(offsets=(0,) * len(shape), sizes=tuple(shape))

    @property
    def volume(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

    def shared(self, other: Box) -> Box | None:
        """What two boxes have in common; None where that is nothing."""
        low = tuple(map(max, self.offsets, other.offsets))
        ends = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        high = (min(a + n, b + m) for a, n, b, m in ends)
        found = Box(offsets=low, sizes=tuple(max(0, stop - start) for start, stop in zip(low, high, strict=True)))
        return found if found.volume else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Where it lies in a tensor that holds no more than the outer box."""
        starts = [at - first for at, first in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))


def are_tiles(shape: Sequence[int], boxes: Iterable[Box]) -> bool:
    """Whether boxes, each of which has elements, are the tiles of a grid that covers a tensor once.

    Any division that cuts one dimension at a time gives such a grid, and it is told in a time that grows with the
    number of boxes, not with its square.
    """
    found = list(boxes)
    if any(len(box.offsets) != len(shape) or len(box.sizes) != len(shape) for box in found):
        return False
    if not math.prod(shape):
        return not found
    counts = []
    for dimension, size in enumerate(shape):
        edges = sorted({(box.offsets[dimension], box.sizes[dimension]) for box in found})
        done = 0
        for start, length in edges:
            if start != done:
                return False
            done += length
        if done != size:
            return False
        counts.append(len(edges))
    return len(found) == len(set(found)) == math.prod(counts)
