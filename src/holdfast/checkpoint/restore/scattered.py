"""Reads tensors that several writers stored in tiles: a part of one, or all of them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.fetcher import Fetcher, Manifests
from holdfast.checkpoint.restore.state_tensors import StateBytes
from holdfast.errors import DamagedData
from holdfast.format.boxes import Box
from holdfast.format.dtypes import array_dtype, itemsize, torch_dtype
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import Manifest
from holdfast.format.scattered import Scattered, Tile

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ScatteredTensor:
    """A tensor in the parts of a checkpoint. ``read`` takes from storage what it needs, and no more than rows of it."""

    def __init__(self, parts: PartTiles, scattered: Scattered) -> None:
        self._parts = parts
        self._scattered = scattered

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        import torch

        return torch.Size(self._scattered.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        return torch_dtype(self._scattered.dtype)

    def read(self, box: Box) -> Tensor:
        """A part of it; raises DamagedData if a byte of what is read is off."""
        return self.read_host(box).in_torch()

    def read_host(self, box: Box) -> HostTensor:
        """The same, without torch."""
        dtype = self._scattered.dtype
        found = np.empty(box.sizes, array_dtype(dtype))
        for tile in self._scattered.tiles:
            if (shared := tile.box.shared(box)) is not None:
                found[shared.within(box)] = self._parts.read(tile, dtype, shared)
        return HostTensor(found, dtype)


class PartTiles:
    """The tiles in all parts of a checkpoint."""

    def __init__(self, fetcher: Fetcher, parts: Manifests) -> None:
        self._fetcher = fetcher
        self._parts = {part.rank: part for part in parts}
        self._bytes: dict[int, StateBytes] = {}

    def read(self, tile: Tile, dtype: str, box: Box) -> NDArray[Any]:
        """A box of a tensor that lies within a tile. Rows are read whole: bytes of a tile follow each other by rows."""
        number = self._number(tile, dtype)
        inner = box.within(tile.box)
        first, last = (inner[0].start, inner[0].stop) if inner else (0, 1)
        row_bytes = itemsize(dtype) * int(np.prod(tile.box.sizes[1:], dtype=np.int64))
        data = self._bytes_of(tile.rank).read(number, first * row_bytes, last * row_bytes)
        shape = (last - first, *tile.box.sizes[1:]) if inner else ()
        return np.frombuffer(data, array_dtype(dtype)).reshape(shape)[(slice(None), *inner[1:]) if inner else ()]

    def _number(self, tile: Tile, dtype: str) -> int:
        part = self._parts.get(tile.rank)
        number = -1 if part is None else len(part.tensors) - tile.place
        if (
            part is None
            or number <= 0
            or (part.tensors[number].dtype, part.tensors[number].shape)
            != (
                dtype,
                tile.box.sizes,
            )
        ):
            raise DamagedData(
                _name_of(self._parts[0]), f"refers to a tile of shape {tile.box.sizes} that rank {tile.rank} lacks"
            )
        return number

    def _bytes_of(self, rank: int) -> StateBytes:
        if rank not in self._bytes:
            self._bytes[rank] = StateBytes(self._fetcher, self._parts[rank])
        return self._bytes[rank]


def in_storage(training: Mapping[str, Any], fetcher: Fetcher, parts: Manifests) -> dict[str, Any]:
    """A training whose scattered tensors can be read, in part or whole."""
    tiles = PartTiles(fetcher, parts)
    found: dict[str, Any] = _mapped(training, lambda scattered: ScatteredTensor(tiles, scattered))
    return found


def made_whole(training: Any, fetcher: Fetcher, parts: Manifests, *, host: bool = False) -> Any:
    """A training, or any part of one, whose scattered tensors are read, each as one; ``host``: without torch."""
    tiles = PartTiles(fetcher, parts)

    def whole(scattered: Scattered) -> Any:
        read = ScatteredTensor(tiles, scattered).read_host(Box.whole(scattered.shape))
        return read if host else read.in_torch()

    return _mapped(training, whole)


def _mapped(value: Any, change: Any) -> Any:
    """A copy of a tree in which every scattered tensor is changed. They are in plain dicts and lists alone."""
    if isinstance(value, Scattered):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if type(value) is list else value


def _name_of(manifest: Manifest) -> str:
    return manifest.bundles[manifest.state[0].place.bundle].name if manifest.state else manifest.checkpoint
