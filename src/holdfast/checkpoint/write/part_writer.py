"""Writes one part of a checkpoint: frames become bundles, bundles become a manifest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.wire.messages import STATE, FrameChunk, TableSlice
from holdfast.checkpoint.wire.state_digests import PieceDigest, digest_pieces
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder
from holdfast.codec.chunk import stored_columns
from holdfast.format.bundle import Member, build_head, checksums
from holdfast.format.catalog import Intent, Ref, object_name, part_name
from holdfast.format.document import digest
from holdfast.format.manifest import (
    EXACT,
    BundleRef,
    Manifest,
    Place,
    RowsChunk,
    StateChunk,
    TablePart,
    TensorSpec,
    table_spec_from_json,
)
from holdfast.format.rows import chunk_ids
from holdfast.format.state_pieces import placed
from holdfast.storage import Store
from holdfast.types import TableSpec


def row_members(
    number: int,
    spec: TableSpec,
    rows: int,
    ids: str | None,
    offset: int,
    *,
    codec: str = EXACT,
    escapes: tuple[int, ...] = (),
) -> list[Member]:
    """The columns of a bundle's chunk ``number`` as stock safetensors readers see them."""
    return [
        Member(
            name=f"{number}/{spec.name}/{column.name}",
            dtype=column.dtype,
            shape=column.shape,
            offset=offset + column.offset,
        )
        for column in stored_columns(spec.columns, rows, ids, codec, escapes)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A chunk of a frame as it is stored: its bytes, where they begin in the bundle's body, and what became of it."""

    source: FrameChunk
    data: memoryview
    offset: int
    ids: str | None
    codec: str = EXACT
    escapes: tuple[int, ...] = ()
    loss: float = 0.0


class PartWriter:
    """Collects the bundles of one writer's part. Frames may be written from several threads at once."""

    def __init__(
        self,
        store: Store,
        intent: Intent,
        rank: int,
        tables: Sequence[TableSlice],
        tensors: Sequence[tuple[str, Sequence[int]]],
        *,
        keep_ids: bool = False,
        encoder: ChunkEncoder | None = None,
    ) -> None:
        self._keep_ids = keep_ids
        self._encoder = encoder
        self.state_digests: list[PieceDigest] = []
        self.ids: dict[tuple[str, int], NDArray[np.int64]] = {}  # row ids, by bundle and the chunk's offset in it
        self._store = store
        self._intent = intent
        self._rank = rank
        self._slices = tables
        self._specs = [table_spec_from_json(table.spec) for table in tables]
        self._tensors = [TensorSpec(dtype=dtype, shape=tuple(shape)) for dtype, shape in tensors]
        self._lock = threading.Lock()
        self._complete = False
        self._attempted: list[str] = []
        self._bundles: dict[int, BundleRef] = {}
        self._chunks: list[tuple[Place, _Stored]] = []  # the place's bundle is a number, not yet an index

    def write_frame(self, number: int, body: memoryview, chunks: Sequence[FrameChunk]) -> None:
        """Store a frame's bytes as bundle ``number``; returns when they are durable."""
        stored = self._encoded(body, chunks)
        directory: list[int] = []
        starts = []
        for each in stored:
            starts.append(len(directory))
            directory += checksums(each.data)
        kept = self._row_ids(body, stored) if self._keep_ids else {}
        states = [chunk for chunk in chunks if chunk.table == STATE]
        digests = [each for chunk in states for each in digest_pieces(body[chunk.offset :], chunk.state_pieces())]
        size = stored[-1].offset + len(stored[-1].data) if stored else 0
        head = build_head(self._members(stored), size, directory)
        name = object_name(self._intent.checkpoint, f"{self._rank:05d}-{number:06d}.safetensors")
        with self._lock:
            self._attempted.append(name)
        as_it_is = all(each.codec == EXACT for each in stored)
        self._store.put(name, [head, body] if as_it_is else [head, *(each.data for each in stored)])
        with self._lock:
            self._bundles[number] = BundleRef(
                name=name, size_bytes=len(head) + size, head_bytes=len(head), digest=digest(head)
            )
            self.state_digests += digests
            self.ids |= {(name, len(head) + offset): ids for offset, ids in kept.items()}
            for start, each in zip(starts, stored, strict=True):
                place = Place(bundle=number, offset=len(head) + each.offset, length=len(each.data), block=start)
                self._chunks.append((place, each))

    def _encoded(self, body: memoryview, chunks: Sequence[FrameChunk]) -> list[_Stored]:
        """The frame's chunks one after another, each as its table's codecs want it."""
        stored: list[_Stored] = []
        offset = 0
        for chunk in chunks:
            data = body[chunk.offset : chunk.offset + chunk.length]
            encoded = self._encoder.encode(chunk, data) if self._encoder and chunk.table != STATE else None
            if encoded is None:
                stored.append(_Stored(source=chunk, data=data, offset=offset, ids=chunk.ids))
            else:
                stored.append(
                    _Stored(
                        source=chunk,
                        data=encoded.data.data,
                        offset=offset,
                        ids=encoded.ids,
                        codec=encoded.codec,
                        escapes=encoded.escapes,
                        loss=encoded.loss,
                    )
                )
            offset += len(stored[-1].data)
        return stored

    def _row_ids(self, body: memoryview, stored: Sequence[_Stored]) -> dict[int, NDArray[np.int64]]:
        """Copies of the ids in a frame, by their chunk's offset: once the frame is freed they lie in the store only."""
        return {
            each.offset: chunk_ids(each.source.rows, each.source.first, each.source.ids, body[each.source.offset :])
            for each in stored
            if each.source.table != STATE
        }

    def finish(self, full_bytes: int) -> tuple[Manifest, Ref]:
        """Write the manifest: from here this part is complete."""
        manifest = Manifest(
            checkpoint=self._intent.checkpoint,
            rank=self._rank,
            world=self._intent.world,
            tables=tuple(self._table(index) for index in range(len(self._specs))),
            tensors=tuple(self._tensors),
            state=self._state(),
            bundles=tuple(self._bundles[number] for number in sorted(self._bundles)),
            full_bytes=full_bytes,
        )
        data = manifest.encode()
        name = part_name(self._intent.checkpoint, self._rank)
        self._complete = self._intent.world > 1  # from here on another writer may find it, and commit
        self._store.put(name, data)
        self._complete = True
        return manifest, Ref(name=name, size_bytes=len(data), digest=digest(data))

    def discard(self) -> None:
        """Delete what was written of a part that will never be complete; it may be what filled the disk."""
        if not self._complete:
            self._store.delete(self._attempted)

    def _table(self, index: int) -> TablePart:
        own = [(place, each) for place, each in self._chunks if each.source.table == index]
        own.sort(key=lambda item: item[1].source.first)
        chunks = tuple(
            RowsChunk(
                place=self._dense(place),
                rows=each.source.rows,
                first=each.source.first,
                last=each.source.last,
                ids=each.ids,
                codec=each.codec,
                escapes=each.escapes,
                loss=each.loss,
            )
            for place, each in own
        )
        part = self._slices[index]
        return TablePart(spec=self._specs[index], start=part.start, stop=part.stop, whole=part.whole, chunks=chunks)

    def _state(self) -> tuple[StateChunk, ...]:
        own = [(place, each.source) for place, each in self._chunks if each.source.table == STATE]
        own.sort(key=lambda item: (item[0].bundle, item[0].offset))
        return tuple(StateChunk(place=self._dense(place), pieces=chunk.state_pieces()) for place, chunk in own)

    def _dense(self, place: Place) -> Place:
        """The place with the bundle's number replaced by its index in the manifest."""
        index = sorted(self._bundles).index(place.bundle)
        return Place(bundle=index, offset=place.offset, length=place.length, block=place.block)

    def _members(self, stored: Sequence[_Stored]) -> list[Member]:
        members: list[Member] = []
        for number, each in enumerate(stored):
            chunk = each.source
            if chunk.table == STATE:
                members += self._state_members(chunk, each.offset)
            else:
                spec = self._specs[chunk.table]
                members += row_members(
                    number, spec, chunk.rows, each.ids, each.offset, codec=each.codec, escapes=each.escapes
                )
        return members

    def _state_members(self, chunk: FrameChunk, offset: int) -> list[Member]:
        members = []
        for at, piece in placed(chunk.state_pieces(), offset):
            tensor = self._tensors[piece.tensor]
            complete = piece.start == 0 and piece.length == tensor.length
            members.append(
                Member(
                    name=f"state/{piece.tensor}" + ("" if complete else f"@{piece.start}"),
                    dtype=tensor.dtype if complete else "U8",
                    shape=tensor.shape if complete else (piece.length,),
                    offset=at,
                )
            )
        return members
