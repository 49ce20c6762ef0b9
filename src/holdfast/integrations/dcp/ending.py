"""How a save ends, on rank 0: one manifest of what all ranks stored, and one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent, Ref, folder_of, part_name
from holdfast.format.dcp_state import DcpPiece, DcpState, DcpTensor
from holdfast.format.document import digest
from holdfast.format.dtypes import code_of
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import BundleRef, Manifest, Place, StateChunk, TensorSpec
from holdfast.format.state_pieces import Piece
from holdfast.format.tree import encode_tree
from holdfast.integrations.dcp.sections import Source
from holdfast.integrations.dcp.stored import Key, StoredPiece, StoredSection, key_of, without_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a checkpoint consists of: with it, nothing is missing but the commit.

    Attributes:
        manifest: The part's contents.
        metadata: What DCP had planned, of which it was made.
        ref: Its name, size and digest.
        data: Its bytes.
    """

    manifest: Manifest
    metadata: Metadata
    ref: Ref
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What all ranks stored."""

    pieces: Mapping[Key, StoredPiece]
    values: Mapping[str, Any]

    @classmethod
    def of(cls, results: Iterable[Iterable[WriteResult]]) -> Gathered:
        """From what each rank's ``write_data`` returned."""
        pieces: dict[Key, StoredPiece] = {}
        values: dict[str, Any] = {}
        for result in (each for rank in results for each in rank):
            if isinstance(result.storage_data, StoredPiece):
                pieces[key_of(result.index)] = result.storage_data
            else:
                values[result.index.fqn] = result.storage_data.value
        return cls(pieces=pieces, values=values)


def make_part(
    intent: Intent,
    metadata: Metadata,
    gathered: Gathered,
    folders: Mapping[str, int],
    store: Callable[[list[Source]], list[StoredPiece]],
) -> Part:
    """Store the state tree with ``store``, which says where it is, and make the part.

    The part is to be put once everything that it refers to is durable.
    """
    state, marks = _state(intent.step, metadata, gathered, folders)
    tree = encode_tree(state.to_tree(), root="state_dict", host=True)
    skeleton = torch.frombuffer(bytearray(tree.skeleton), dtype=torch.uint8)
    own = [skeleton, *(_torch(each) for each in tree.tensors if id(each) not in marks)]
    sources = [
        Source(name=f"state/{number}", spec=_spec(each), tensor=each, known={}) for number, each in enumerate(own)
    ]
    written = iter(store(sources))
    tensors = [next(written), *(marks.get(id(each)) or next(written) for each in tree.tensors)]
    manifest = _manifest(intent, tensors)
    data = manifest.encode()
    ref = Ref(name=part_name(intent.checkpoint, 0), size_bytes=len(data), digest=digest(data))
    return Part(manifest=manifest, metadata=metadata, ref=ref, data=data)


def _state(
    step: int, metadata: Metadata, gathered: Gathered, folders: Mapping[str, int]
) -> tuple[DcpState, dict[int, StoredPiece]]:
    """The state, with a mark in the place of every tensor, and what is stored behind each mark."""
    marks: dict[int, StoredPiece] = {}
    kept: list[HostTensor] = []  # their ids must stay theirs

    def piece(fqn: str, offsets: tuple[int, ...]) -> DcpPiece:
        stored = gathered.pieces.get((fqn, offsets))
        if stored is None:
            raise SaveFailed(f"no rank stored the piece of {fqn} at {offsets}, which the plan holds")
        mark = without_elements(stored.spec)
        kept.append(mark)
        marks[id(mark)] = stored
        return DcpPiece(offsets=offsets, tensor=mark, digests=tuple(each.digest for each in stored.sections))

    tensors = {
        name: DcpTensor(
            dtype=code_of(each.properties.dtype),
            size=tuple(each.size),
            pieces=tuple(piece(name, tuple(chunk.offsets)) for chunk in each.chunks),
        )
        for name, each in metadata.state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    used = {folder_of(section.bundle.name) for each in marks.values() for section in each.sections}
    state = DcpState(
        step=step,
        values=gathered.values,
        tensors=tensors,
        planner=metadata.planner_data,
        folders={folder: size_bytes for folder, size_bytes in folders.items() if folder in used},
    )
    return state, marks


def _manifest(intent: Intent, tensors: list[StoredPiece]) -> Manifest:
    bundles: dict[str, BundleRef] = {}
    numbers: dict[str, int] = {}
    state = []
    for number, tensor in enumerate(tensors):
        for section in tensor.sections:
            bundles.setdefault(section.bundle.name, section.bundle)
            bundle = numbers.setdefault(section.bundle.name, len(numbers))
            state.append(_chunk(number, section, bundle))
    specs = tuple(tensor.spec for tensor in tensors)
    return Manifest(
        checkpoint=intent.checkpoint,
        rank=0,
        world=intent.world,
        tables=(),
        tensors=specs,
        state=tuple(state),
        bundles=tuple(bundles.values()),
        full_bytes=sum(spec.length for spec in specs),
    )


def _chunk(number: int, section: StoredSection, bundle: int) -> StateChunk:
    piece = Piece(tensor=number, start=section.start, length=section.length)
    kept = section.place
    place = Place(bundle=bundle, offset=kept.offset, length=kept.length, block=kept.block)  # replace() takes 5 µs
    return StateChunk(place=place, pieces=(piece,))


def _torch(tensor: Tensor | HostTensor) -> Tensor:
    return tensor.in_torch() if isinstance(tensor, HostTensor) else tensor


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(dtype=code_of(tensor.dtype), shape=tuple(tensor.shape))
