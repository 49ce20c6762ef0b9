"""Checkpoints of ``torch.distributed.checkpoint`` (DCP): tensors in blocks, spread over the files of a folder."""

from __future__ import annotations

import io
import math
import mmap
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.training.forms import has_form
from holdfast.checkpoint.transfer.foreign.tensors import (
    ForeignCheckpoint,
    ForeignTensor,
    ReadRows,
    file_map,
    flat_model,
    mapped_rows,
    rows_of,
)
from holdfast.errors import ConfigurationError, DamagedData

METADATA = ".metadata"
_PICKLED = "is a pickled object, which is never loaded"
# DCP's directory of a checkpoint is a pickle. It is made of these and of dtypes; one that names more is refused.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "_MEM_FORMAT_ENCODING",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
}
_UNREADABLE = (EOFError, RuntimeError, ValueError, pickle.UnpicklingError)


def open_dcp(folder: Path) -> ForeignCheckpoint:
    """The tensors of a DCP folder; its other objects are pickles, and skipped."""
    metadata = _metadata(folder / METADATA)
    paths: Mapping[str, tuple[object, ...]] = metadata.planner_data or {}
    stored = {paths.get(name, (name,)): (name, item) for name, item in metadata.state_dict_metadata.items()}
    places = {(index.fqn, tuple(index.offset or ())): place for index, place in metadata.storage_data.items()}
    model, skipped = flat_model(stored)
    open_file = cache(lambda leaf: _open_file(folder, leaf))
    tensors = {}
    for name, (stored_name, item) in model.items():
        if hasattr(item, "chunks"):
            tensors[name] = _tensor(stored_name, item, places, open_file)
        else:
            skipped[name] = _PICKLED
    return ForeignCheckpoint(kind="DCP checkpoint", tensors=tensors, skipped=skipped)


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _metadata(path: Path) -> Any:
    try:
        metadata = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
        if isinstance(metadata.state_dict_metadata, Mapping) and isinstance(metadata.storage_data, Mapping):
            return metadata
    except pickle.UnpicklingError as error:
        raise ConfigurationError(f"{path} is not what DCP writes ({error}), so it was not loaded") from error
    except (AttributeError, EOFError, ImportError, LookupError, TypeError, ValueError) as error:
        raise DamagedData(str(path), f"cannot be read as the metadata of a DCP checkpoint: {error!r}") from error
    raise DamagedData(str(path), "holds no metadata of a DCP checkpoint")


def _open_file(folder: Path, leaf: str) -> mmap.mmap:
    if Path(leaf).name != leaf or not (folder / leaf).is_file():
        raise DamagedData(str(folder / METADATA), f"refers to {leaf!r}, which the folder does not hold")
    return file_map(folder / leaf)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A part of a tensor, in any of its dimensions, and how to read rows of it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    read: ReadRows

    def copy_rows(self, target: Tensor, start: int, stop: int) -> None:
        """Fill ``target``, rows ``start .. stop`` of the tensor, with what of them lies in this block."""
        first = self.offsets[0]
        low, high = max(start, first), min(stop, first + self.sizes[0])
        if low < high:
            others = (slice(o, o + n) for o, n in zip(self.offsets[1:], self.sizes[1:], strict=True))
            target[(slice(low - start, high - start), *others)] = self.read(low - first, high - first)


def _tensor(name: str, item: Any, places: Mapping[Any, Any], open_file: Callable[[str], mmap.mmap]) -> ForeignTensor:
    dtype, shape = item.properties.dtype, tuple(item.size)
    blocks = []
    for chunk in item.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        if (name, offsets) not in places:
            raise DamagedData(METADATA, f"does not say where the piece of {name} at {offsets} is")
        read = _lazily(partial(_open_block, name, open_file, places[name, offsets], dtype, sizes))
        blocks.append(_Block(offsets=offsets, sizes=sizes, read=read))
    if sum(math.prod(block.sizes) for block in blocks) != math.prod(shape):
        raise DamagedData(METADATA, f"lists pieces of {name} that do not make up its shape {shape}")

    def read_rows(start: int, stop: int) -> Tensor:
        if blocks[0].sizes == shape:
            return blocks[0].read(start, stop)
        rows = torch.empty((stop - start, *shape[1:]), dtype=dtype)
        for block in blocks:
            block.copy_rows(rows, start, stop)
        return rows

    return ForeignTensor(dtype=dtype, shape=shape, read=read_rows)


def _lazily(open_block: Callable[[], ReadRows]) -> ReadRows:
    """Open a block when it is first read."""
    opened = cache(open_block)
    return lambda start, stop: opened()(start, stop)


def _open_block(
    name: str, open_file: Callable[[str], mmap.mmap], place: Any, dtype: torch.dtype, sizes: tuple[int, ...]
) -> ReadRows:
    """Where DCP put it: a ``torch.save`` archive inside a file, whose one tensor can mostly be mapped."""
    if getattr(place, "transform_descriptors", None):
        raise ConfigurationError(f"{name} is stored in an extension's form; save the DCP checkpoint without extensions")
    try:
        mapped = open_file(place.relative_path)
        archive = memoryview(mapped)[place.offset : place.offset + place.length]
        form = torch.load(io.BufferedReader(_View(archive)), map_location="meta", weights_only=True)
        offset = getattr(form.untyped_storage(), "_checkpoint_offset", None)
        if not has_form(form, sizes, dtype):
            raise ValueError(f"it is {form.dtype}{list(form.shape)}")
        if offset is not None and form.is_contiguous():
            start = place.offset + offset + form.storage_offset() * dtype.itemsize
            return mapped_rows(mapped, start, dtype, sizes)
        return rows_of(torch.load(io.BufferedReader(_View(archive)), map_location="cpu", weights_only=True))
    except _UNREADABLE as error:
        raise DamagedData(place.relative_path, f"holds no readable piece of {name}: {error}") from error


class _View(io.RawIOBase):
    """Part of a mapped file as a file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def readinto(self, target: Any) -> int:
        """The next bytes."""
        view = memoryview(target).cast("B")
        found = self._data[self._position : self._position + len(view)]
        view[: len(found)] = found
        self._position += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._data)}[whence]
        self._position = max(0, origin + offset)
        return self._position
