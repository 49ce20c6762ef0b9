"""A manifest: one writer's part of a checkpoint — its table shards' chunks and its share of the state.

Immutable; its digest stands in the checkpoint's part list, and it states the digest of every bundle's head
(docs/spec/manifest.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.format import fields
from holdfast.format.document import Json, parse, seal, unseal
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import IDS
from holdfast.format.manifest_check import check_manifest
from holdfast.format.state_pieces import Piece
from holdfast.types import ColumnSpec, Strip, TableSpec

KIND, VERSION = "manifest", 1
_WEIGHT = "weight"  # the first column of every table


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRef:
    """A bundle: its object, size, and the length and digest of its head."""

    name: str
    size_bytes: int
    head_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a chunk is: bundle by index, byte range of the object, first entry in the bundle's directory."""

    bundle: int
    offset: int
    length: int
    block: int


EXACT = "exact"  # the codec of rows as they are
ALIVE = -1  # in a segment: replaced by none of the checkpoints that the manifest names


class Segment(NamedTuple):
    """So many row records of a chunk that checkpoint ``replaced`` (an index into the manifest's list) replaced."""

    replaced: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChunk:
    """Row records ``first .. last`` of a table; ``ids`` is the stored dtype of the ids, None if contiguous.

    In a grid the records are arranged by the checkpoint that replaced them: those still alive first, then the last
    replaced, then the one before; no segments: all alive. Of the checkpoints that the manifest names, every one among
    the first ``through`` has its segment; records that later ones replaced still stand among the living.

    ``codec`` is "exact", or JSON: the codec of each column by its name (docs/spec/codec.md). ``escapes`` says of how
    many rows each of these columns keeps the values outside of its records; ``loss`` is the mean distance (l2) of a
    stored weight row from the one that was saved.
    """

    place: Place
    rows: int
    first: int
    last: int
    ids: str | None
    codec: str = EXACT
    segments: tuple[Segment, ...] = ()
    through: int = 0
    escapes: tuple[int, ...] = ()
    loss: float = 0.0

    @property
    def alive(self) -> int:
        """Records not known to be replaced."""
        return self.visible(0)

    def visible(self, replacing: int) -> int:
        """How many leading records a checkpoint needs that comes after this many replacing ones."""
        if not self.segments:
            return self.rows
        return sum(rows for replaced, rows in self.segments if not 0 <= replaced < replacing)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChunk:
    """Pieces of state tensors, each padded to the alignment of columns."""

    place: Place
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A state tensor's type and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """What this writer saved of rows ``start .. stop`` of a table; ``whole`` means all of them."""

    spec: TableSpec
    start: int
    stop: int
    whole: bool
    chunks: tuple[RowsChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One writer's part; state tensor 0 is the skeleton of the state tree.

    ``replacing`` names the checkpoints that came after it, in their order, up to the one at which a grid last arranged
    its rows.
    """

    checkpoint: str
    rank: int
    world: int
    tables: tuple[TablePart, ...]
    tensors: tuple[TensorSpec, ...]
    state: tuple[StateChunk, ...]
    bundles: tuple[BundleRef, ...]
    full_bytes: int  # what this part would have taken with every row
    replacing: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of its bundles."""
        return sum(bundle.size_bytes for bundle in self.bundles)

    @property
    def rows_written(self) -> int:
        """Row records in its chunks."""
        return sum(chunk.rows for table in self.tables for chunk in table.chunks)

    @property
    def lived(self) -> int:
        """How many checkpoints the replaced records lived, added up.

        A restore believes segments without reading what they leave out. So they are stated twice: a manifest whose
        segments do not add up to this is refused.
        """
        chunks = (chunk for table in self.tables for chunk in table.chunks)
        return sum((segment.replaced - ALIVE) * segment.rows for chunk in chunks for segment in chunk.segments)

    def encode(self) -> bytes:
        """The manifest as the bytes of its object."""
        return seal(KIND, VERSION, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """As JSON, to be part of another document."""
        return _to_json(self)

    @classmethod
    def from_json(cls, body: dict[str, Any], *, name: str) -> Manifest:
        """The inverse of to_json, for a body found in the object ``name``."""
        return parse(name, lambda: check_manifest(_from_json(body), _lived(body)))

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str, verified: bool = False) -> Manifest:
        """Parse and check the object ``name``; ``verified``: its bytes were compared with their digest."""
        body = unseal(KIND, VERSION, data, name=name, verified=verified)
        return cls.from_json(body, name=name)


def table_spec_to_json(spec: TableSpec) -> dict[str, Any]:
    """A table's shape as JSON."""
    columns = [[column.name, column.dtype, list(column.row_shape)] for column in spec.columns]
    body: dict[str, Any] = {"name": spec.name, "rows": spec.rows, "columns": columns}
    if spec.strip is not None:
        body["strip"] = [spec.strip.table, spec.strip.first, spec.strip.width]
    return body


def table_spec_from_json(body: dict[str, Any]) -> TableSpec:
    """Parse what table_spec_to_json produced."""
    columns = tuple(_column_from_json(column) for column in fields.items(body["columns"], "columns"))
    names = fields.texts([column.name for column in columns], "columns")
    if any(name == IDS or name.endswith(".escapes") for name in names):
        raise ValueError(f"columns is {names}: none may be called {IDS!r} or end with '.escapes'")
    if names[:1] != (_WEIGHT,) or list(names[1:]) != sorted(names[1:]):
        raise ValueError(f"columns is {names}: the weight comes first, then the slots in the order of their names")
    name = fields.text(body["name"], "the name of a table")
    return TableSpec(
        name=name,
        rows=fields.integer(body["rows"], "rows"),
        columns=columns,
        strip=_strip_from_json(body["strip"], name, columns[0]) if "strip" in body else None,
    )


def _strip_from_json(body: Json, name: str, weight: ColumnSpec) -> Strip:
    table, first, width = fields.items(body, "strip", 3)
    strip = Strip(
        table=fields.text(table, "the table of a strip"),
        first=fields.integer(first, "the first value of a strip"),
        width=fields.integer(width, "the values of a strip's table"),
    )
    values = weight.row_shape[0] if len(weight.row_shape) == 1 else 0
    if not 0 < values < strip.width or strip.first + values > strip.width or name != strip.name(values):
        raise ValueError(f"strip is {body}: this is not what a strip called {name!r} would say")
    return strip


def _column_from_json(body: Json) -> ColumnSpec:
    name, dtype, shape = fields.items(body, "a column", 3)
    return ColumnSpec(
        name=fields.text(name, "the name of a column"), dtype=_dtype(dtype), row_shape=_shape(shape, "a row's shape")
    )


def _dtype(value: Json) -> str:
    itemsize(fields.text(value, "dtype"))  # raises on one that is not known
    return str(value)


def _shape(value: Json, what: str) -> tuple[int, ...]:
    return tuple(fields.integer(length, what) for length in fields.items(value, what))


def chunk_to_json(chunk: RowsChunk) -> list[Any]:
    """A chunk of rows as JSON."""
    return _chunk_to_json(chunk)


def chunk_from_json(body: list[Any]) -> RowsChunk:
    """Parse what chunk_to_json produced."""
    return _chunk_from_json(body)


def _place_to_json(place: Place) -> list[int]:
    return [place.bundle, place.offset, place.length, place.block]


def _place_from_json(body: list[int]) -> Place:
    bundle, offset, length, block = body
    return Place(bundle=bundle, offset=offset, length=length, block=block)


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "checkpoint": manifest.checkpoint,
        "rank": manifest.rank,
        "world": manifest.world,
        "tables": [_table_to_json(table) for table in manifest.tables],
        "tensors": [[tensor.dtype, list(tensor.shape)] for tensor in manifest.tensors],
        "state": [
            {"place": _place_to_json(c.place), "pieces": [[p.tensor, p.start, p.length] for p in c.pieces]}
            for c in manifest.state
        ],
        "bundles": [[b.name, b.size_bytes, b.head_bytes, b.digest] for b in manifest.bundles],
        "full_bytes": manifest.full_bytes,
        "replacing": list(manifest.replacing),
        **({"lived": manifest.lived} if manifest.replacing else {}),
    }


def _table_to_json(table: TablePart) -> dict[str, Any]:
    chunks = [_chunk_to_json(chunk) for chunk in table.chunks]
    shard = {"start": table.start, "stop": table.stop, "whole": table.whole, "chunks": chunks}
    return {**table_spec_to_json(table.spec), **shard}


def _chunk_to_json(chunk: RowsChunk) -> list[Any]:
    body = [_place_to_json(chunk.place), chunk.rows, chunk.first, chunk.last, chunk.ids, chunk.codec]
    segments = [list(segment) for segment in chunk.segments]
    if chunk.codec != EXACT:
        return [*body, segments, chunk.through, list(chunk.escapes), chunk.loss]
    return [*body, segments, chunk.through] if segments or chunk.through else body


def _chunk_from_json(body: list[Any]) -> RowsChunk:
    place, rows, first, last, ids, codec, *rest = body
    segments, through, escapes, loss = (*rest, *_PLAIN_CHUNK[len(rest) :])
    return RowsChunk(
        place=_place_from_json(place),
        rows=rows,
        first=first,
        last=last,
        ids=ids,
        codec=codec,
        segments=tuple(map(Segment._make, segments)),
        through=through,
        escapes=tuple(escapes),
        loss=loss,
    )


_PLAIN_CHUNK: tuple[Any, ...] = ((), 0, (), 0.0)  # segments, through, escapes and loss where they are left out


def _from_json(body: Json) -> Manifest:
    world = fields.integer(body["world"], "world", least=1)
    return Manifest(
        checkpoint=fields.text(body["checkpoint"], "checkpoint"),
        rank=fields.integer(body["rank"], "rank", most=world - 1),
        world=world,
        tables=tuple(map(_table_from_json, fields.items(body["tables"], "tables"))),
        tensors=tuple(map(_tensor_from_json, fields.items(body["tensors"], "tensors"))),
        state=tuple(map(_state_from_json, fields.items(body["state"], "state"))),
        bundles=tuple(map(bundle_from_json, fields.items(body["bundles"], "bundles"))),
        full_bytes=fields.integer(body["full_bytes"], "full_bytes"),
        replacing=fields.texts(body["replacing"], "replacing"),
    )


def _lived(body: Json) -> int:
    if not body["replacing"] and "lived" in body:
        raise ValueError("lived is there, and no checkpoint that replaced anything")
    return fields.integer(body["lived"], "lived") if body["replacing"] else 0


def _table_from_json(body: Json) -> TablePart:
    spec = table_spec_from_json(body)
    stop = fields.integer(body["stop"], "stop", most=spec.rows)
    return TablePart(
        spec=spec,
        start=fields.integer(body["start"], "start", most=stop),
        stop=stop,
        whole=fields.flag(body["whole"], "whole"),
        chunks=tuple(map(_chunk_from_json, fields.items(body["chunks"], "chunks"))),
    )


def _tensor_from_json(body: Json) -> TensorSpec:
    dtype, shape = fields.items(body, "a tensor", 2)
    return TensorSpec(dtype=_dtype(dtype), shape=_shape(shape, "a tensor's shape"))


def bundle_from_json(body: Json) -> BundleRef:
    """A bundle as a manifest names it."""
    name, size_bytes, head_bytes, digest = fields.items(body, "a bundle", 4)
    size = fields.integer(size_bytes, "the size of a bundle")
    return BundleRef(
        name=fields.text(name, "the name of a bundle"),
        size_bytes=size,
        head_bytes=fields.integer(head_bytes, "the head of a bundle", least=8, most=size),
        digest=fields.text(digest, "the digest of a bundle"),
    )


def _state_from_json(body: Json) -> StateChunk:
    pieces = tuple(Piece(tensor=t, start=s, length=n) for t, s, n in fields.items(body["pieces"], "pieces"))
    return StateChunk(place=_place_from_json(body["place"]), pieces=pieces)
