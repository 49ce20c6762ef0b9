"""The contents of a foreign checkpoint: tensors, mapped or read a few rows at a time."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

MODEL_KEYS = ("model", "state_dict", "model_state_dict")  # where training scripts keep the weights beside the rest
NOT_A_TENSOR = "is not a tensor"
NOT_THE_MODEL = "is not part of the model's state_dict"

ReadRows: TypeAlias = Callable[[int, int], Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTensor:
    """A tensor in a foreign checkpoint. ``read(start, stop)`` gives rows of it; a tensor without dimensions has one."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: ReadRows
    identity: Hashable | None = None  # equal where two names stand for one and the same tensor

    @property
    def rows(self) -> int:
        """How many rows there are to read."""
        return self.shape[0] if self.shape else 1

    @property
    def size_bytes(self) -> int:
        """The size of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> Tensor:
        """The complete tensor."""
        return self.read(0, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheckpoint:
    """What a foreign checkpoint holds, and what of it cannot be used, with the reason."""

    kind: str  # for messages
    tensors: Mapping[str, ForeignTensor]
    skipped: Mapping[str, str]


def flat_model(tree: Mapping[tuple[object, ...], T]) -> tuple[dict[str, T], dict[str, str]]:
    """The leaves that are the model's, by dotted name, and why the others are not; paths are of nested dicts.

    The model is what stands under one of MODEL_KEYS, or everything where none of them holds a dict.
    """
    key = next((key for key in MODEL_KEYS if any(path[0] == key and len(path) > 1 for path in tree)), None)
    model = {_dotted(path[1:] if key else path): leaf for path, leaf in tree.items() if key is None or path[0] == key}
    rest = {_dotted(path): NOT_THE_MODEL for path in tree if key is not None and path[0] != key}
    return model, rest


def _dotted(path: tuple[object, ...]) -> str:
    return ".".join(map(str, path))


def file_map(path: Path) -> mmap.mmap:
    """A file's bytes, read when they are touched; writing to them would not reach the file."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def mapped_rows(mapped: mmap.mmap, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> ReadRows:
    """A ``ForeignTensor.read`` over a contiguous tensor that begins at ``offset`` of a mapped file."""
    row_bytes = math.prod(shape[1:]) * dtype.itemsize

    def read(start: int, stop: int) -> Tensor:
        size = (stop - start) * row_bytes
        form = (stop - start, *shape[1:]) if shape else ()
        if not size:
            return torch.empty(form, dtype=dtype)
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=offset + start * row_bytes)
        aligned = raw if raw.data_ptr() % dtype.itemsize == 0 else raw.clone()
        return aligned.view(dtype).view(form)

    return read


def rows_of(tensor: Tensor) -> ReadRows:
    """A ``ForeignTensor.read`` over a tensor."""
    return lambda start, stop: tensor[start:stop] if tensor.dim() else tensor
