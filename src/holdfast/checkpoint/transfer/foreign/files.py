"""Checkpoints in one file, or in a folder of such files: ``torch.save`` and safetensors."""

from __future__ import annotations

import json
import math
import pickle
import struct
import zipfile
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.transfer.foreign.tensors import (
    NOT_A_TENSOR,
    ForeignCheckpoint,
    ForeignTensor,
    file_map,
    flat_model,
    mapped_rows,
    rows_of,
)
from holdfast.errors import ConfigurationError, DamagedData
from holdfast.format.dtypes import torch_dtype

_INDEX = "*.safetensors.index.json"
_LENGTH = struct.Struct("<Q")


def open_torch(path: Path, *, archive: bool) -> ForeignCheckpoint:
    """A ``torch.save`` file of a state_dict, or of a dict that holds one; an archive is mapped, not read."""
    loaded = _load_weights(path, archive)
    if not isinstance(loaded, Mapping):
        raise ConfigurationError(f"{path} holds a {type(loaded).__name__}, not a state_dict: save model.state_dict()")
    leaves: dict[tuple[object, ...], object] = {}
    for key, value in loaded.items():
        nested = value if isinstance(value, Mapping) else None
        leaves |= {(key,): value} if nested is None else {(key, name): leaf for name, leaf in nested.items()}
    model, skipped = flat_model(leaves)
    tensors = {name: _tensor(leaf) for name, leaf in model.items() if isinstance(leaf, Tensor)}
    skipped |= {name: NOT_A_TENSOR for name in model if name not in tensors}
    return ForeignCheckpoint(kind="torch.save file", tensors=tensors, skipped=skipped)


def _load_weights(path: Path, archive: bool) -> Any:
    if archive and not zipfile.is_zipfile(path):
        raise DamagedData(str(path), "is an archive without its end: it is truncated")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{path} holds more than weights, and unpickling it could run code: load it where you trust it and save "
            f"its model.state_dict() alone ({str(error).strip().splitlines()[0]})"
        ) from error
    except (EOFError, RuntimeError, ValueError) as error:
        raise DamagedData(str(path), f"cannot be read as a torch.save file: {error}") from error


def _tensor(tensor: Tensor) -> ForeignTensor:
    shape = tuple(tensor.shape)
    return ForeignTensor(dtype=tensor.dtype, shape=shape, read=rows_of(tensor), identity=_identity(tensor))


def _identity(tensor: Tensor) -> Hashable | None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def open_safetensors(path: Path) -> ForeignCheckpoint:
    """A safetensors file, or a folder of them with or without an index."""
    tensors: dict[str, ForeignTensor] = {}
    for file, wanted in _safetensors_files(path).items():
        found = _safetensors(file)
        if lacking := sorted((wanted or set()) - found.keys()):
            raise DamagedData(str(file), f"lacks {lacking[0]}, which the folder's index says it holds")
        for name in found if wanted is None else wanted:
            if name in tensors:
                raise ConfigurationError(f"{path}: two files hold a tensor {name}, and no index says which one to use")
            tensors[name] = found[name]
    return ForeignCheckpoint(kind="safetensors", tensors=tensors, skipped={})


def _safetensors_files(path: Path) -> dict[Path, set[str] | None]:
    """The files, each with the names to take of it (None: all)."""
    if path.is_file():
        return {path: None}
    indexes = sorted(path.glob(_INDEX))
    if not indexes:
        return {file: None for file in sorted(path.glob("*.safetensors"))}
    if len(indexes) > 1:
        raise ConfigurationError(f"{path} holds the indexes of several models: {', '.join(i.name for i in indexes)}")
    files: dict[Path, set[str] | None] = {}
    for name, leaf in _weight_map(indexes[0]).items():
        if Path(leaf).name != leaf or not (path / leaf).is_file():
            raise DamagedData(str(indexes[0]), f"says {name} is in {leaf!r}, which the folder does not hold")
        names = files.setdefault(path / leaf, set())
        assert names is not None
        names.add(name)
    return files


def _weight_map(index: Path) -> dict[str, str]:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        return {str(name): str(file) for name, file in places.items()}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedData(str(index), f"holds no weight_map: {error!r}") from error


def _safetensors(path: Path) -> dict[str, ForeignTensor]:
    try:
        mapped = file_map(path)
        (length,) = _LENGTH.unpack_from(mapped)
        header = json.loads(mapped[_LENGTH.size : _LENGTH.size + length])
        header.pop("__metadata__", None)
        data = memoryview(mapped)[_LENGTH.size + length :]
        return {name: _entry(mapped, len(mapped) - len(data), entry) for name, entry in header.items()}
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise DamagedData(str(path), f"is not a complete safetensors file: {error}") from error


def _entry(mapped: Any, origin: int, entry: Mapping[str, Any]) -> ForeignTensor:
    low, high = entry["data_offsets"]
    dtype, shape = torch_dtype(entry["dtype"]), tuple(entry["shape"])
    if not 0 <= low <= high <= len(mapped) - origin or high - low != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"bytes {low} to {high} do not hold {entry['dtype']}{list(shape)}")
    return ForeignTensor(dtype=dtype, shape=shape, read=mapped_rows(mapped, origin + low, dtype, shape))
