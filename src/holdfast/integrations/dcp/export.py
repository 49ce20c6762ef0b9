"""Exports any checkpoint as a folder of DCP's own, in bounded memory."""

from __future__ import annotations

import io
import math
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.read.crew import Progress
from holdfast.errors import ConfigurationError
from holdfast.integrations.dcp.boxes import BoxCopy
from holdfast.integrations.dcp.contents import Contents
from holdfast.integrations.dcp.stored import Key
from holdfast.integrations.dcp.values import pickled

_PIECE_BYTES = 256 << 20  # of a tensor, in memory at a time


def export_dcp(path: Path, contents: Contents, *, progress: Progress | None = None) -> None:
    """Write a checkpoint as a DCP folder, which appears when it is complete.

    Args:
        path: The folder, which must not exist yet.
        contents: What the checkpoint holds.
        progress: Called periodically with the bytes read since the last call.
    """
    if path.exists():
        raise ConfigurationError(f"cannot write {path}: it exists already; DCP would mix its files with those there")
    if not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: folder {path.parent} does not exist")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        folder = Path(scratch) / path.name
        # A file for each piece: within a file, DCP's writer holds on to every tensor until the end.
        storage = FileSystemWriter(folder, single_file_per_rank=False)
        save({}, storage_writer=storage, planner=_Pieces(contents, progress), no_dist=True)
        folder.replace(path)


class _Pieces(SavePlanner):
    """Plans what a checkpoint holds, and reads each piece when DCP writes it."""

    def __init__(self, contents: Contents, progress: Progress | None) -> None:
        self._contents = contents
        self._metadata = contents.metadata()
        self._progress = progress
        self._source: dict[Key, ChunkStorageMetadata] = {}  # the stored piece that a planned one is part of

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """There is no state dict: everything comes from the checkpoint."""

    def create_local_plan(self) -> SavePlan:
        """An item for each value and each piece."""
        items: list[WriteItem] = []
        for name, found in self._metadata.state_dict_metadata.items():
            if isinstance(found, TensorStorageMetadata):
                items += self._items(name, found)
            else:
                items.append(WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """As the default planner does it."""
        plans, metadata = create_default_global_save_plan(all_plans)
        return plans, replace(metadata, planner_data=self._metadata.planner_data)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Nothing to change."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Read a piece or a value."""
        name = write_item.index.fqn
        if write_item.tensor_data is None:
            return pickled(self._contents.value(name))
        chunk = write_item.tensor_data.chunk
        source = self._source[name, tuple(chunk.offsets)]
        target = torch.empty(chunk.sizes, dtype=write_item.tensor_data.properties.dtype)
        offsets = tuple(at - start for at, start in zip(chunk.offsets, source.offsets, strict=True))
        self._contents.fill([BoxCopy(key=(name, tuple(source.offsets)), offsets=offsets, target=target)])
        if self._progress is not None:
            self._progress(target.nbytes)
        return target

    def _items(self, name: str, found: TensorStorageMetadata) -> Iterator[WriteItem]:
        for stored in found.chunks:
            for chunk in _parts(stored, found.properties.dtype.itemsize):
                self._source[name, tuple(chunk.offsets)] = stored
                data = TensorWriteData(chunk=chunk, properties=found.properties, size=found.size)
                is_whole = chunk.sizes == found.size
                kind = WriteItemType.TENSOR if is_whole else WriteItemType.SHARD
                yield WriteItem(index=MetadataIndex(name, chunk.offsets), type=kind, tensor_data=data)


def _parts(chunk: ChunkStorageMetadata, element_bytes: int) -> Iterator[ChunkStorageMetadata]:
    """A piece cut along its first dimension, so that no part takes much memory."""
    if not chunk.sizes or not math.prod(chunk.sizes):
        yield chunk
        return
    rows = max(1, _PIECE_BYTES // (math.prod(chunk.sizes[1:]) * element_bytes))
    for start in range(0, chunk.sizes[0], rows):
        count = min(rows, chunk.sizes[0] - start)
        yield ChunkStorageMetadata(
            offsets=Size((chunk.offsets[0] + start, *chunk.offsets[1:])), sizes=Size((count, *chunk.sizes[1:]))
        )
