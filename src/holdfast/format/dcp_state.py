"""What ``torch.distributed.checkpoint`` (DCP) saved of a training, as a state tree (docs/spec/dcp.md).

DCP knows a training as flat names: a tensor in pieces, which are boxes of it, or any other value. Large pieces are
stored in sections, each with its SHA-256, so that the next save refers to those that it finds unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DamagedData
from holdfast.format.dtypes import itemsize

SECTION_BYTES = 2 << 20  # of a piece, at most; a multiple of the alignment of state pieces
_GRAIN_BYTES = 128 << 10  # of which sections are multiples, but for the last of a piece
DIGEST_BYTES = 32
_FIELDS = {"values", "tensors", "planner", "folders"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpPiece:
    """A box of a tensor: where it begins, its elements (a tensor of the tree), and the SHA-256 of each section."""

    offsets: tuple[int, ...]
    tensor: Any
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpTensor:
    """A tensor that the ranks of a job hold together."""

    dtype: str
    size: tuple[int, ...]
    pieces: tuple[DcpPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpState:
    """Everything that one call of ``dcp.save`` stored.

    Args:
        step: The step of the checkpoint.
        values: What is not a tensor, by its flat name.
        tensors: The tensors, by their flat names.
        planner: What the planner keeps with a checkpoint: of DCP's own, the path behind each flat name.
        folders: Folders of earlier checkpoints that hold sections of this one, and the bytes of all sections in each.
    """

    step: int
    values: Mapping[str, Any]
    tensors: Mapping[str, DcpTensor]
    planner: Any
    folders: Mapping[str, int]

    def pieces(self) -> Iterator[tuple[str, DcpPiece]]:
        """The pieces of all tensors, each after the name of its own."""
        return ((name, piece) for name, tensor in self.tensors.items() for piece in tensor.pieces)

    def to_tree(self) -> dict[str, Any]:
        """As a state tree."""
        tensors = {
            name: {
                "dtype": each.dtype,
                "size": each.size,
                "pieces": [(piece.offsets, piece.tensor, b"".join(piece.digests)) for piece in each.pieces],
            }
            for name, each in self.tensors.items()
        }
        dcp = {
            "values": dict(self.values),
            "tensors": tensors,
            "planner": self.planner,
            "folders": dict(self.folders),
        }
        return {"step": self.step, "dcp": dcp}

    @classmethod
    def from_tree(cls, tree: object, *, name: str) -> DcpState:
        """The inverse of to_tree; raises DamagedData about the object ``name``."""
        try:
            return cls._from_tree(tree)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedData(name, f"holds a malformed state of DCP: {error}") from error

    @classmethod
    def _from_tree(cls, tree: Any) -> DcpState:
        if not is_dcp(tree) or set(tree["dcp"]) != _FIELDS:
            raise ValueError(f"its fields are not step and dcp with {sorted(_FIELDS)}")
        dcp = tree["dcp"]
        return cls(
            step=_count(tree["step"]),
            values=_named(dcp["values"]),
            tensors={name: _tensor(name, each) for name, each in _named(dcp["tensors"]).items()},
            planner=dcp["planner"],
            folders={folder: _count(size_bytes) for folder, size_bytes in _named(dcp["folders"]).items()},
        )


def is_dcp(tree: object) -> bool:
    """Whether a state tree is what DCP saved."""
    return isinstance(tree, Mapping) and set(tree) == {"step", "dcp"}


def sections_of(length: int) -> list[tuple[int, int]]:
    """Where the sections of a piece of so many bytes begin, and how long they are: few, and of one length.

    Two of one length can be hashed side by side to the end.
    """
    count = max(1, -(-length // SECTION_BYTES))
    even = -(-length // (count * _GRAIN_BYTES)) * _GRAIN_BYTES
    return [(start, min(even, length - start)) for start in range(0, length, max(1, even))]


def _tensor(name: str, body: Any) -> DcpTensor:
    itemsize(body["dtype"])  # raises on one that is not known
    size = _shape(body["size"])
    pieces = tuple(_piece(name, size, *each) for each in body["pieces"])
    if sum(math.prod(piece.tensor.shape) for piece in pieces) > math.prod(size):
        raise ValueError(f"the pieces of {name} hold more than {size}")
    return DcpTensor(dtype=body["dtype"], size=size, pieces=pieces)


def _piece(name: str, size: tuple[int, ...], offsets: Any, tensor: Any, digests: bytes) -> DcpPiece:
    shape, offsets = tuple(tensor.shape), _shape(offsets)
    if len(shape) != len(size) or len(offsets) != len(size):
        raise ValueError(f"a piece of {name} has another number of dimensions")
    if any(at + length > whole for at, length, whole in zip(offsets, shape, size, strict=True)):
        raise ValueError(f"a piece of {name} lies outside of {size}")
    if not isinstance(digests, bytes) or len(digests) % DIGEST_BYTES:
        raise ValueError(f"a piece of {name} has no digests")
    found = tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
    return DcpPiece(offsets=offsets, tensor=tensor, digests=found)


def _named(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError("names are strings")
    return value


def _shape(value: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_count, value))


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
