"""What ranks tell each other about a save: where sections of tensors are stored. Plain values, which DCP pickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.distributed.checkpoint.metadata import MetadataIndex

from holdfast.format.dtypes import array_dtype
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import BundleRef, Place, TensorSpec

Key = tuple[str, tuple[int, ...]]  # a piece: the flat name of its tensor, and where it begins in it


def key_of(index: MetadataIndex) -> Key:
    """The piece that DCP calls by this index."""
    return index.fqn, tuple(index.offset or ())


def without_elements(spec: TensorSpec) -> HostTensor:
    """A tensor's form, in no more memory than one element takes."""
    return HostTensor(np.broadcast_to(np.zeros((), array_dtype(spec.dtype)), spec.shape), spec.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSection:
    """Bytes ``start ..`` of a piece: their SHA-256, and the chunk of a bundle that holds them."""

    start: int
    length: int
    digest: bytes
    bundle: BundleRef
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """A box of a tensor as it is stored, in the order of its bytes."""

    spec: TensorSpec
    sections: tuple[StoredSection, ...]


@dataclass(frozen=True, slots=True)
class PlainValue:
    """What is not a tensor, on its way to rank 0."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What rank 0 tells another rank of a save: which checkpoint it is, and what of it the last one holds already."""

    checkpoint: str
    rank: int
    known: Mapping[Key, StoredPiece] = field(default_factory=dict)
