"""The baseline that differences refer to: its weights, as stored, for any set of rows.

A difference names its baseline by checkpoint and digest. Writer and fetcher compute the same digest from the heads of
the bundles that hold the table's rows; these heads contain the checksums of all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.codec import Baseline, Codec, Difference, Encoded, Exact, take
from holdfast.codec.base import Rows
from holdfast.codec.chunk import codecs_of, dim_of, escapes_name, first_rows, stored_columns
from holdfast.codec.rows import numpy_type
from holdfast.errors import DamagedData
from holdfast.format.document import digest
from holdfast.format.manifest import BundleRef, Manifest, RowsChunk, TablePart
from holdfast.types import ColumnSpec, TableSpec

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChunk:
    """The weights of contiguous rows of a baseline: in memory, or to be read when they are needed."""

    spec: TableSpec
    bundle: BundleRef
    chunk: RowsChunk
    fetcher: Fetcher
    held: Encoded | None = None

    @property
    def column(self) -> ColumnSpec:
        """The column of the weights."""
        return self.spec.weight

    @property
    def codec(self) -> Codec:
        """What the weights are stored with."""
        codecs = codecs_of(self.chunk.codec)
        codec = Exact() if codecs is None else codecs[self.column.name]
        if isinstance(codec, Difference):
            raise DamagedData(self.bundle.name, "holds differences where a baseline should be")
        return codec

    def holds_any(self, rows: range) -> bool:
        """Whether some of these rows of the table are in it."""
        return self.chunk.first < rows.stop and self.chunk.last >= rows.start

    def in_memory(self) -> KeyChunk:
        """The same chunk, read into memory."""
        return self if self.held else replace(self, held=self._encoded())

    def rows(self, positions: Ids) -> Rows:
        """The rows at these positions of the chunk, as a restore would give them back."""
        codec, column = self.codec, self.column
        taken = take(codec, self.held or self._encoded(), positions, dim_of(column), column.dtype)
        return codec.decode(taken, dim_of(column), column.dtype)

    def _encoded(self) -> Encoded:
        chunk, name = self.chunk, self.column.name
        stored = {c.name: c for c in stored_columns(self.spec.columns, chunk.rows, None, chunk.codec, chunk.escapes)}
        records, escapes = (
            self.fetcher.chunk(self.bundle, chunk.place, found.offset, found.offset + found.length)
            if (found := stored.get(each)) and found.length
            else memoryview(b"")
            for each in (name, escapes_name(name))
        )
        return first_rows(self.column, self.codec, records, escapes, chunk.rows, name=self.bundle.name)


class KeyTable:
    """A table's weights in a baseline."""

    def __init__(self, checkpoint: str, chunks: Iterable[KeyChunk]) -> None:
        self._chunks = sorted((chunk for chunk in chunks if chunk.chunk.rows), key=lambda each: each.chunk.first)
        self._starts = np.array([each.chunk.first for each in self._chunks], dtype=np.int64)
        self.baseline = Baseline(checkpoint=checkpoint, digest=_digest(each.bundle for each in self._chunks))

    def require(self, baseline: Baseline, name: str) -> None:
        """Refuse differences, in the object ``name``, from any other baseline."""
        if baseline != self.baseline:
            raise DamagedData(
                name,
                f"its rows are differences from checkpoint {baseline.checkpoint} ({baseline.digest[:12]}), but are "
                f"based on {self.baseline.checkpoint} ({self.baseline.digest[:12]})",
            )

    @property
    def nbytes(self) -> int:
        """Memory it uses."""
        return sum(each.held.size_bytes for each in self._chunks if each.held)

    def in_memory(self, rows: range | None = None) -> KeyTable:
        """The same table, read into memory; with ``rows``, only what holds some of these."""
        chunks = [each.in_memory() if rows is None or each.holds_any(rows) else each for each in self._chunks]
        return KeyTable(self.baseline.checkpoint, chunks)

    def rows(self, ids: Ids) -> Rows:
        """The rows with these ids, in any order."""
        if not len(self._chunks):
            raise DamagedData(self.baseline.checkpoint, "holds no rows of a table that differences refer to")
        column = self._chunks[0].column
        out = np.empty((len(ids), dim_of(column)), dtype=numpy_type(column.dtype))
        order = np.argsort(ids, kind="stable")
        bounds = np.searchsorted(ids[order], self._starts[1:])
        for chunk, at in zip(self._chunks, np.split(order, bounds), strict=True):
            if len(at):
                positions = ids[at] - chunk.chunk.first
                if positions[0] < 0 or positions[-1] >= chunk.chunk.rows:
                    raise DamagedData(chunk.bundle.name, "lacks rows that differences refer to")
                out[at] = chunk.rows(positions)
        return out


def key_chunks(fetcher: Fetcher, manifest: Manifest, part: TablePart) -> list[KeyChunk]:
    """The chunks of one writer's part of a table in a baseline."""
    bundles = manifest.bundles
    return [KeyChunk(spec=part.spec, bundle=bundles[c.place.bundle], chunk=c, fetcher=fetcher) for c in part.chunks]


def key_of(fetcher: Fetcher, plan: TablePlan) -> KeyTable | None:
    """What the differences in a plan differ from; None if there are none."""
    if not plan.key:
        return None
    chunks = [KeyChunk(spec=plan.spec, bundle=read.bundle, chunk=read.chunk, fetcher=fetcher) for read in plan.key]
    return KeyTable(plan.key[0].checkpoint, chunks)


def require_key(key: KeyTable | None, read: Read, ids: Ids | None) -> tuple[KeyTable, Ids]:
    """What the records of a chunk are differences from, and of which rows; anything else is damage."""
    if key is None or ids is None or read.baseline is None:
        raise DamagedData(read.bundle.name, "holds differences without a baseline")
    key.require(read.baseline, read.bundle.name)
    return key, ids


def _digest(bundles: Iterable[BundleRef]) -> str:
    names = dict.fromkeys(bundle.digest for bundle in bundles)
    return digest("\n".join(names).encode())
