"""What a checkpoint holds, in DCP's terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Size
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.format.dtypes import torch_dtype
from holdfast.integrations.dcp.boxes import BoxCopy

Shape = tuple[int, ...]


class Contents(Protocol):
    """A checkpoint as DCP's planners see it. Whatever it gives was verified."""

    def metadata(self) -> Metadata:
        """Which tensors and values there are, by their flat names."""
        ...

    def value(self, name: str) -> Any:
        """One that is not a tensor."""
        ...

    def fill(self, copies: Sequence[BoxCopy]) -> None:
        """Copy boxes of stored pieces to where they are wanted."""
        ...


def described_tensor(dtype: str, size: Shape, pieces: Iterable[tuple[Shape, Shape]]) -> TensorStorageMetadata:
    """A tensor in pieces, each with its offsets and sizes."""
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=torch_dtype(dtype)),
        size=Size(size),
        chunks=[ChunkStorageMetadata(offsets=Size(offsets), sizes=Size(sizes)) for offsets, sizes in pieces],
    )
