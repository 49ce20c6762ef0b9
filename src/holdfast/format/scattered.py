"""A state tensor that no writer holds in full: which part of a checkpoint holds which box of it (docs/spec/tree.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.format.boxes import Box, are_tiles
from holdfast.format.document import Json
from holdfast.format.dtypes import itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A box of a tensor, and where it is stored."""

    rank: int  # in whose part
    place: int  # among the state tensors of that part, counted from the last one, which is 1
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattered:
    """A tensor in a state tree, in whose place its tiles are named. They cover it exactly once."""

    dtype: str
    shape: tuple[int, ...]
    tiles: tuple[Tile, ...]

    def to_json(self) -> Json:
        """As the payload of a tag."""
        tiles = [[each.rank, each.place, list(each.box.offsets), list(each.box.sizes)] for each in self.tiles]
        return [self.dtype, list(self.shape), tiles]

    @classmethod
    def from_json(cls, payload: Any) -> Scattered:
        """The inverse; raises TypeError or ValueError for anything else."""
        dtype, shape, tiles = payload
        itemsize(dtype)  # raises on one that is not known
        found = cls(dtype=dtype, shape=_counts(shape), tiles=tuple(_tile(*each) for each in tiles))
        if not are_tiles(found.shape, (each.box for each in found.tiles)):
            raise ValueError(f"the tiles of a tensor of shape {found.shape} do not cover it once")
        return found


def _tile(rank: Any, place: Any, offsets: Any, sizes: Any) -> Tile:
    _counts([rank, place])
    if not place:
        raise ValueError("places of tiles begin at 1")
    return Tile(rank=rank, place=place, box=Box(offsets=_counts(offsets), sizes=_counts(sizes)))


def _counts(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(each) is not int or each < 0 for each in values):
        raise ValueError(f"{values!r} are no counts")
    return tuple(values)
