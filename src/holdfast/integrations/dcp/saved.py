"""A checkpoint that DCP saved: what it holds, and how boxes of its tensors are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from holdfast.checkpoint.read.crew import WORKERS, Crew, Task
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.errors import DamagedData
from holdfast.format.catalog import Entry
from holdfast.format.dcp_state import DcpState, is_dcp
from holdfast.format.document import parse
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import Manifest, StateChunk
from holdfast.format.tree import decode_tree
from holdfast.integrations.dcp.boxes import BoxCopy, box_tasks
from holdfast.integrations.dcp.contents import described_tensor
from holdfast.integrations.dcp.stored import Key, StoredPiece, StoredSection, without_elements
from holdfast.kernels.checksums import load_for

_REMOTE_WORKERS = 8  # these mostly wait


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpCheckpoint:
    """One that ``dcp.save`` wrote."""

    fetcher: Fetcher
    entry: Entry
    state: DcpState
    pieces: Mapping[Key, StoredPiece]

    @classmethod
    def open(cls, fetcher: Fetcher, entry: Entry) -> DcpCheckpoint | None:
        """Read what it holds, without its tensors; None for a checkpoint that DCP did not write."""
        manifest = fetcher.parts(entry)[0]
        skeleton = bytes(read_tensors(fetcher, manifest, {SKELETON})[SKELETON])
        empty = [without_elements(spec) for spec in manifest.tensors[1:]]
        name = entry.part_list.name
        tree = decode_tree(skeleton, empty, name=name, host=True)
        if not is_dcp(tree):
            return None
        state = DcpState.from_tree(tree, name=name)
        numbers = parse(name, lambda: _numbers(state, empty))
        pieces = _stored(manifest, state, numbers, name)
        values = _values(fetcher, manifest, skeleton, empty, set(numbers.values()))
        return cls(fetcher=fetcher, entry=entry, state=values or state, pieces=pieces)

    def metadata(self) -> Metadata:
        """What DCP's planners plan from."""
        described: dict[str, Any] = {name: BytesStorageMetadata() for name in self.state.values}
        for name, tensor in self.state.tensors.items():
            pieces = [(piece.offsets, tuple(piece.tensor.shape)) for piece in tensor.pieces]
            described[name] = described_tensor(tensor.dtype, tensor.size, pieces)
        return Metadata(state_dict_metadata=described, planner_data=self.state.planner)

    def value(self, name: str) -> Any:
        """What is not a tensor."""
        return self.state.values[name]

    def fill(self, copies: Sequence[BoxCopy]) -> None:
        """Copy boxes of stored pieces to where they are wanted."""
        tasks: list[Task] = []
        for copy in copies:
            tasks += box_tasks(self.fetcher, self.pieces[copy.key], copy)
        load_for(sum(copy.target.nbytes for copy in copies))
        with Crew(_REMOTE_WORKERS if self.fetcher.is_remote else WORKERS) as crew:
            crew.do(tasks)


def _numbers(state: DcpState, empty: Sequence[HostTensor]) -> dict[Key, int]:
    """Which state tensor each piece is."""
    number_of = {id(each): number for number, each in enumerate(empty, start=1)}
    found = {(fqn, piece.offsets): number_of[id(piece.tensor)] for fqn, piece in state.pieces()}
    if len(set(found.values())) != sum(1 for _ in state.pieces()):
        raise ValueError("two pieces are at one place, or are one tensor")
    return found


def _stored(manifest: Manifest, state: DcpState, numbers: Mapping[Key, int], name: str) -> dict[Key, StoredPiece]:
    chunks: dict[int, list[StateChunk]] = defaultdict(list)
    for chunk in manifest.state:
        for part in chunk.pieces:
            chunks[part.tensor].append(chunk)
    found: dict[Key, StoredPiece] = {}
    for fqn, piece in state.pieces():
        number = numbers[fqn, piece.offsets]
        own = chunks[number]
        if len(own) != len(piece.digests) or any(len(chunk.pieces) != 1 for chunk in own):
            raise DamagedData(name, f"has {len(piece.digests)} digests of a piece of {fqn}, not one for each chunk")
        if manifest.tensors[number].dtype != state.tensors[fqn].dtype:
            raise DamagedData(name, f"has a piece of {fqn} of another type")
        sections = tuple(_section(manifest, *each) for each in zip(own, piece.digests, strict=True))
        found[fqn, piece.offsets] = StoredPiece(spec=manifest.tensors[number], sections=sections)
    return found


def _section(manifest: Manifest, chunk: StateChunk, digest: bytes) -> StoredSection:
    return StoredSection(
        start=chunk.pieces[0].start,
        length=chunk.pieces[0].length,
        digest=digest,
        bundle=manifest.bundles[chunk.place.bundle],
        place=chunk.place,
    )


def _values(
    fetcher: Fetcher, manifest: Manifest, skeleton: bytes, empty: Sequence[HostTensor], of_tensors: set[int]
) -> DcpState | None:
    """The state with the tensors and arrays that values hold; None where none holds any."""
    wanted = set(range(1, len(manifest.tensors))) - of_tensors
    if not wanted:
        return None
    found = read_tensors(fetcher, manifest, wanted)
    tensors: list[Any] = list(empty)
    for number, data in found.items():
        spec = manifest.tensors[number]
        tensors[number - 1] = as_tensor(memoryview(data), spec.dtype, spec.shape)
    return DcpState.from_tree(decode_tree(skeleton, tensors, name=manifest.checkpoint), name=manifest.checkpoint)
