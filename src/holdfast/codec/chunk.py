"""Chunks with encoded columns: where their records are, and how rows are encoded and decoded.

``[ids] records records ... escapes ...``: a column of records takes the place of each column of values, one record per
row, so rows can be moved and read by their number as in any chunk. After them, for each column that has some, come the
values that no record can hold, in the order of the records that say so (docs/spec/codec.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.base import Codec, Encoded, Records, Rows, take
from holdfast.codec.difference import Difference
from holdfast.codec.exact import Exact
from holdfast.codec.json import from_json, to_json
from holdfast.codec.quantized import Quantized
from holdfast.codec.rows import from_bytes, to_bytes, to_single
from holdfast.errors import DamagedData
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import Column, Shape, chunk_bytes, chunk_columns, ids_shape, in_places
from holdfast.format.manifest import EXACT
from holdfast.format.rows import pack_ids
from holdfast.types import ColumnSpec

Codecs = Mapping[str, Codec | Difference]  # by the column's name; one for each column of a table


def codecs_text(codecs: Codecs) -> str:
    """How a manifest names them."""
    if all(isinstance(codec, Exact) for codec in codecs.values()):
        return EXACT
    return json.dumps({name: to_json(codec) for name, codec in codecs.items()}, separators=(",", ":"))


@lru_cache(maxsize=256)
def codecs_of(text: str) -> Codecs | None:
    """The inverse of codecs_text; None if every column is exact."""
    if text == EXACT:
        return None
    try:
        body = json.loads(text)
        return {str(name): from_json(codec) for name, codec in body.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedData("a chunk's codec", f"cannot be read: {text[:80]!r}") from error


def is_exact(codec: Codec | Difference, dim: int, dtype: str) -> bool:
    """Whether rows of this many values are stored exactly."""
    inner = codec.inner if isinstance(codec, Difference) else codec
    return isinstance(inner, Exact) or (isinstance(inner, Quantized) and inner.is_exact(dim, dtype))


def dim_of(column: ColumnSpec) -> int:
    """The number of values per row."""
    return math.prod(column.row_shape)


def escapes_name(column: str) -> str:
    """The column of values that the records of another one cannot hold."""
    return f"{column}.escapes"


@lru_cache(maxsize=4096)
def stored_columns(
    columns: tuple[ColumnSpec, ...], rows: int, ids: str | None, codec: str = EXACT, escapes: tuple[int, ...] = ()
) -> tuple[Column, ...]:
    """All columns of a chunk as it lies in its bundle."""
    codecs = codecs_of(codec)
    if codecs is None:
        return chunk_columns(columns, rows, ids)
    shapes = [] if ids is None else [ids_shape(rows, ids)]
    shapes += [_records_shape(column, codecs[column.name], rows) for column in columns]
    shapes += [
        Shape(escapes_name(column.name), "U8", (count, dim_of(column) * itemsize(column.dtype)), per_row=False)
        for column, count in zip(columns, escapes, strict=True)
        if count
    ]
    return in_places(shapes)


def _records_shape(column: ColumnSpec, codec: Codec | Difference, rows: int) -> Shape:
    if isinstance(codec, Exact):
        return Shape(column.name, column.dtype, (rows, *column.row_shape))
    return Shape(column.name, "U8", (rows, codec.bytes_per_row(dim_of(column), column.dtype)))


def record_bytes(columns: Sequence[ColumnSpec], codec: str) -> int:
    """Bytes of one row's records, without its id."""
    return sum(column.length for column in stored_columns(tuple(columns), 1, None, codec, (0,) * len(columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """A chunk's bytes, and what its manifest says about them."""

    data: NDArray[np.uint8]
    ids: str | None
    codec: str
    escapes: tuple[int, ...]
    loss: float
    weights: Encoded  # the first column alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A column that was encoded before; what it lost is measured by a sample of its rows as they were."""

    encoded: Encoded
    sample: memoryview
    positions: NDArray[np.int64]  # of the sample's rows
    baseline_sample: Rows | None = None  # the baseline's rows there, if records are of differences


def encode_chunk(
    columns: tuple[ColumnSpec, ...],
    codecs: Codecs,
    values: Mapping[str, memoryview | Prepared],
    ids: NDArray[np.int64] | None,
    rows: int,
    baseline_rows: Rows | None = None,
) -> EncodedChunk:
    """Encode the rows with these (sorted) ids, or contiguous ones; ``values`` are their columns as they are in memory.

    ``baseline_rows`` are needed where the codec of the weights, the first column, refers to a baseline.
    """
    encoded: dict[str, Encoded] = {}
    loss = 0.0
    for column in columns:
        codec, given = codecs[column.name], values[column.name]
        if isinstance(given, Prepared):
            found, lost = given.encoded, partial(_sampled_loss, given)
        else:
            matrix = _matrix(given, column, rows)
            found = _encode(codec, matrix, column, baseline_rows)
            lost = partial(_loss, found, matrix, baseline_rows)
        encoded[column.name] = found
        if column is columns[0]:
            loss = lost(codec, column)
    escapes = tuple(len(encoded[column.name].escapes) for column in columns)
    kind, packed = (None, None) if ids is None else pack_ids(ids, in_order=True)
    text = codecs_text(codecs)
    data = _joined(stored_columns(columns, rows, kind, text, escapes), encoded, packed)
    weights = encoded[columns[0].name]
    return EncodedChunk(data=data, ids=kind, codec=text, escapes=escapes, loss=loss, weights=weights)


def decode_column(
    column: ColumnSpec,
    codec: Codec | Difference,
    records: memoryview,
    escapes: memoryview,
    rows: int,
    baseline_rows: Rows | None = None,
    *,
    name: str = "encoded rows",
) -> NDArray[np.uint8]:
    """The bytes of the values of a column's first ``rows`` rows, which lie in the object ``name``."""
    encoded = first_rows(column, codec, records, escapes, rows, name=name)
    return to_bytes(_decode(codec, encoded, column, baseline_rows)).reshape(-1)


def first_rows(
    column: ColumnSpec, codec: Codec | Difference, records: memoryview, escapes: memoryview, rows: int, *, name: str
) -> Encoded:
    """The first records of a column in the object ``name``, with those of its escapes that belong to them."""
    dim = dim_of(column)
    width = codec.bytes_per_row(dim, column.dtype)
    matrix = np.frombuffer(records, dtype=np.uint8)[: rows * width].reshape(rows, width)
    kept = np.frombuffer(escapes, dtype=np.uint8).reshape(-1, dim * itemsize(column.dtype))
    flagged = int(np.count_nonzero(codec.escaped(matrix, dim, column.dtype)))
    if flagged > len(kept):
        raise DamagedData(
            name, f"{flagged} records say that their row is stored exactly, but only {len(kept)} rows are"
        )
    return Encoded(records=matrix, escapes=kept[:flagged])


def _matrix(data: memoryview, column: ColumnSpec, rows: int) -> Rows:
    raw = np.frombuffer(data, dtype=np.uint8).reshape(rows, dim_of(column) * itemsize(column.dtype))
    return from_bytes(raw, column.dtype)


def _encode(codec: Codec | Difference, matrix: Rows, column: ColumnSpec, baseline_rows: Rows | None) -> Encoded:
    if isinstance(codec, Exact):
        width = dim_of(column) * itemsize(column.dtype)
        return Encoded(records=to_bytes(matrix), escapes=np.empty((0, width), dtype=np.uint8))
    if isinstance(codec, Difference):
        assert baseline_rows is not None
        return codec.encode(matrix, baseline_rows, column.dtype)
    return codec.encode(matrix, column.dtype)


def _decode(codec: Codec | Difference, encoded: Encoded, column: ColumnSpec, baseline_rows: Rows | None) -> Rows:
    if isinstance(codec, Difference):
        assert baseline_rows is not None
        return codec.decode(encoded, baseline_rows, codec.baseline, dim_of(column), column.dtype)
    return codec.decode(encoded, dim_of(column), column.dtype)


def _sampled_loss(given: Prepared, codec: Codec | Difference, column: ColumnSpec) -> float:
    own = codec.inner if isinstance(codec, Difference) else codec
    encoded = take(own, given.encoded, given.positions, dim_of(column), column.dtype)
    return _loss(encoded, _matrix(given.sample, column, len(given.positions)), given.baseline_sample, codec, column)


def _loss(
    encoded: Encoded,
    matrix: Rows,
    baseline_rows: Rows | None,
    codec: Codec | Difference,
    column: ColumnSpec,
) -> float:
    """The mean distance of a row from what it comes back as; rows stored as they are count as exact.

    These are the escapes, and all rows that are too short for a record: whatever they hold, NaN included.
    """
    dim, dtype = dim_of(column), column.dtype
    if not len(matrix) or is_exact(codec, dim, dtype):
        return 0.0
    back = to_single(_decode(codec, encoded, column, baseline_rows), dtype)
    with np.errstate(all="ignore"):
        off = back - to_single(matrix, dtype)
        off[codec.escaped(encoded.records, dim, dtype)] = 0.0
        distances = np.sqrt(np.einsum("ij,ij->i", off, off))
    if not np.isfinite(distances).all():  # values so large that single precision does not hold their squares
        distances = np.linalg.norm(off.astype(np.float64), axis=1)
    return float(distances.mean(dtype=np.float64))


def _joined(
    columns: Sequence[Column], encoded: Mapping[str, Encoded], ids: NDArray[np.uint8] | None
) -> NDArray[np.uint8]:
    parts: dict[str, Records] = {name: each.records for name, each in encoded.items()}
    parts |= {escapes_name(name): each.escapes for name, each in encoded.items()}
    data = np.zeros(chunk_bytes(columns), dtype=np.uint8)
    for column in columns:
        source = parts.get(column.name, ids)
        assert source is not None
        data[column.offset : column.offset + column.length] = source.reshape(-1)
    return data
