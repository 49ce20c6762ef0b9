"""Encodes the rows in frames as records: on the agent's side, so training does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.checkpoint.read.key_frame import KeyChunk, KeyTable, key_chunks
from holdfast.checkpoint.wire.frame_layout import frame_columns, sample_in_frame, sample_positions
from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.codec import Difference, Encoded, from_json
from holdfast.codec.chunk import Codecs, EncodedChunk, Prepared, encode_chunk, escapes_name
from holdfast.codec.quantized import Quantized
from holdfast.errors import (
    CheckpointNotFound,
    ConfigurationError,
    DamagedData,
    RunError,
    SaveFailed,
    StorageError,
)
from holdfast.format.catalog import Entry, Intent
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import Manifest, table_spec_from_json
from holdfast.format.rows import chunk_ids
from holdfast.storage import Store
from holdfast.types import Kind, TableSpec

Held = Mapping[tuple[str, int], Encoded]  # by table and first row
KeyFrame = Mapping[str, KeyTable]  # by table; those that differences cannot refer to are missing


class KeyFrames:
    """The baseline that the next differences refer to: the one that the checkpoint before them stands on.

    In memory it takes what the writer's own weights take in the baseline, about a quarter of its rows; else these are
    read back for every save. It changes with a confirmed commit only. What this agent did not commit itself is read
    back.
    """

    def __init__(self, store: Store, *, in_memory: bool) -> None:
        self._store = store
        self.in_memory = in_memory
        self._lock = threading.Lock()
        self._tables: dict[str, KeyTable] = {}
        self._standing: set[str] = set()  # checkpoints that stand on it
        self._held: tuple[str, Held] = ("", {})  # of the baseline that this agent committed last

    def below(self, intent: Intent, own: Mapping[str, range]) -> KeyFrame:
        """What differences of this save may refer to; of each table the writer stores its ``own`` rows."""
        if intent.base is None:
            return {}
        with self._lock:  # frames are encoded on several threads
            if intent.base not in self._standing:
                self._load(intent.base, own)
            return self._tables

    def committed(self, entry: Entry, manifest: Manifest, held: Held) -> None:
        """A checkpoint of ours is the newest; ``held`` are the weights of a baseline, from when they were encoded."""
        with self._lock:
            if entry.info.kind is Kind.FULL:
                self._held = (entry.info.id, held)
                self._tables, self._standing = {}, set()  # until the first difference is due
            elif entry.info.base in self._standing:
                self._standing.add(entry.info.id)
                self._forget_whole(manifest)

    def _load(self, checkpoint: str, own: Mapping[str, range]) -> None:
        """Learn what a checkpoint stands on; weights are read only where they are not held yet."""
        head = Chain(self._store).head(skip_damaged=True)
        if head is None:
            raise CheckpointNotFound(
                f"{self._store.url} does not hold checkpoint {checkpoint}, which differences refer to"
            )
        baseline, *deltas = lineage(head, checkpoint)
        fetcher = Fetcher(self._store)
        held = self._held[1] if self._held[0] == baseline.info.id else {}
        chunks: dict[str, list[KeyChunk]] = {}
        for manifest in fetcher.parts(baseline):
            for part in manifest.tables:
                name = part.spec.name
                found = (replace(c, held=held.get((name, c.chunk.first))) for c in key_chunks(fetcher, manifest, part))
                chunks.setdefault(name, []).extend(found)
        self._tables = {name: KeyTable(baseline.info.id, each) for name, each in chunks.items()}
        if self.in_memory and not held:
            self._tables = {name: table.in_memory(own.get(name)) for name, table in self._tables.items()}
        self._standing = {entry.info.id for entry in (baseline, *deltas)}
        for entry in deltas:
            for manifest in fetcher.parts(entry):
                self._forget_whole(manifest)

    def _forget_whole(self, manifest: Manifest) -> None:
        """A table that was saved whole above the baseline has its newer rows there: nothing may differ from older ones.

        A new mapping each time: others may be reading the old one.
        """
        whole = {part.spec.name for part in manifest.tables if part.whole}
        self._tables = {name: table for name, table in self._tables.items() if name not in whole}


class ChunkEncoder:
    """Encodes the chunks of one save as its tables' slices say."""

    def __init__(self, intent: Intent, slices: Sequence[TableSlice], key_frames: KeyFrames) -> None:
        self._intent = intent
        self._slices = slices
        self._key_frames = key_frames
        self._specs = [table_spec_from_json(each.spec) for each in slices]
        self._codecs = [_codecs(each) for each in slices]
        self._own = {spec.name: range(s.start, s.stop) for spec, s in zip(self._specs, slices, strict=True)}
        self.held: dict[tuple[str, int], Encoded] = {}  # the weights of a baseline, where differences will need them

    def encode(self, chunk: FrameChunk, data: memoryview) -> EncodedChunk | None:
        """A chunk of rows as it is to be stored; None for as it is. An error names the table and its cause."""
        codecs = self._codecs[chunk.table]
        if codecs is None:
            return None
        try:
            return self._encode(chunk, data, codecs)
        except (DamagedData, RunError, StorageError):  # of the baseline's objects, which they name
            raise
        except Exception as error:
            rows = f"rows {chunk.first} to {chunk.last} of table {self._specs[chunk.table].name}"
            raise SaveFailed(f"{rows} could not be encoded: {error!r}") from error

    def _encode(self, chunk: FrameChunk, data: memoryview, codecs: Codecs) -> EncodedChunk:
        spec = self._specs[chunk.table]
        values = _columns(spec, chunk, data)
        if chunk.ids is None:
            encoded = encode_chunk(spec.columns, codecs, values, None, chunk.rows)
            if self._slices[chunk.table].difference is not None and self._key_frames.in_memory:
                weights = encoded.weights
                # Records that came in the frame still lie there, and frames are used again.
                self.held[spec.name, chunk.first] = weights.copy() if chunk.recorded else weights
            return encoded
        ids = chunk_ids(chunk.rows, chunk.first, chunk.ids, data)
        table = self._key_table(chunk.table)
        given = values[spec.weight.name]
        made = given if isinstance(given, Prepared) and self._slices[chunk.table].made_from is not None else None
        if made is not None:
            self._require_made_from(table, chunk.table)
        if table is None:
            return encode_chunk(spec.columns, codecs, values, ids, chunk.rows)
        inner = self._slices[chunk.table].difference
        assert inner is not None
        difference = Difference(inner=_quantized(inner), baseline=table.baseline)
        codecs = {**codecs, spec.weight.name: difference}
        if made is None:
            return encode_chunk(spec.columns, codecs, values, ids, chunk.rows, table.rows(ids))
        sampled = replace(made, baseline_sample=table.rows(ids[made.positions]))
        return encode_chunk(spec.columns, codecs, {**values, spec.weight.name: sampled}, ids, chunk.rows)

    def _require_made_from(self, table: KeyTable | None, index: int) -> None:
        """Refuse differences that the trainer made from another baseline than a restore would add them to."""
        wanted = self._slices[index].made_from
        found = None if table is None else table.baseline.checkpoint
        if found != wanted:
            raise SaveFailed(
                f"its differences were made from checkpoint {wanted}, but what is saved stands on {found or 'none'}"
            )

    def _key_table(self, index: int) -> KeyTable | None:
        """What the table's rows shall differ from, if they shall and can."""
        if self._slices[index].difference is None:
            return None
        return self._key_frames.below(self._intent, self._own).get(self._specs[index].name)


def _columns(spec: TableSpec, chunk: FrameChunk, data: memoryview) -> dict[str, memoryview | Prepared]:
    """The columns of a chunk in a frame: values, or records that were made before it came here."""
    recorded = chunk.recorded_columns()
    placed = frame_columns(spec.columns, chunk.rows, chunk.ids, recorded)
    found = {each.name: data[each.offset : each.offset + each.length] for each in placed}
    columns: dict[str, memoryview | Prepared] = {}
    for column in spec.columns:
        name = column.name
        columns[name] = found[name]
        if name in recorded:
            escapes, sample = found[escapes_name(name)], found[sample_in_frame(name)]
            columns[name] = Prepared(
                encoded=Encoded(
                    records=np.frombuffer(found[name], dtype=np.uint8).reshape(chunk.rows, -1),
                    escapes=np.frombuffer(escapes, dtype=np.uint8).reshape(-1, row_bytes([column])),
                ),
                sample=sample,
                positions=sample_positions(chunk.rows, recorded[name].sample),
            )
    return columns


def _codecs(part: TableSlice) -> Codecs | None:
    return {name: from_json(codec) for name, codec in part.codecs.items()} if part.codecs else None


def _quantized(body: Mapping[str, object]) -> Quantized:
    codec = from_json(body)
    if not isinstance(codec, Quantized):
        raise ConfigurationError(f"differences are not stored with {codec.name!r}")
    return codec
