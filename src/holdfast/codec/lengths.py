"""Checks that chunks are as long as their declared contents, for many at once, before any byte of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.chunk import codecs_of, dim_of
from holdfast.errors import DamagedData
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import padded, row_bytes
from holdfast.format.manifest import EXACT, Manifest, RowsChunk
from holdfast.format.outline import Outline
from holdfast.format.rows import id_bytes
from holdfast.types import ColumnSpec

Numbers = NDArray[np.int64]
_T = TypeVar("_T")
_MOST_BYTES = 2**56  # of a column: the sum of all stays below what 64 bits hold


class Form(NamedTuple):
    """How the ids and columns of some chunks of a table are stored."""

    columns: tuple[ColumnSpec, ...]
    ids: str | None
    codec: str


class Alike(NamedTuple):
    """Chunks of one form: the rows of each, its bytes, and of how many rows each column keeps escapes."""

    form: Form
    rows: Numbers
    lengths: Numbers
    escapes: Sequence[tuple[int, ...]]


class _Widths(NamedTuple):
    """Bytes for each row, and for each row that is kept outside of its record."""

    records: tuple[int, ...]  # the ids first
    escapes: tuple[int, ...]


def check_lengths(groups: Iterable[Alike], *, name: str) -> None:
    """Raise DamagedData for the object ``name`` if a chunk cannot hold what it is said to, or holds more."""
    for form, rows, lengths, escapes in groups:
        widths = _widths(form, name)
        if any(len(each) != len(widths.escapes) for each in escapes):
            raise DamagedData(name, "has a chunk without a count of escapes for each column")
        kept = np.array(escapes, dtype=np.int64).reshape(len(rows), len(widths.escapes))
        if len(kept) and (kept > rows[:, None]).any():
            raise DamagedData(name, "has a chunk with more escapes than rows")
        widest = max(widths.records + widths.escapes, default=0)
        if widest * int(rows.max(initial=0)) > _MOST_BYTES:
            raise DamagedData(name, f"has a chunk with {widest} bytes for each row, which is more than it can hold")
        wanted = np.zeros_like(lengths)
        for width in widths.records:
            wanted += padded(rows * width)
        for at, width in enumerate(widths.escapes):
            wanted += padded(kept[:, at] * width)
        if not np.array_equal(wanted, lengths):
            raise DamagedData(name, "has a chunk whose length is not that of its rows")


def of_manifest(manifest: Manifest) -> Iterator[Alike]:
    """The chunks of a manifest."""
    groups: dict[Form, list[RowsChunk]] = {}
    for table in manifest.tables:
        for chunk in table.chunks:
            groups.setdefault(Form(table.spec.columns, chunk.ids, chunk.codec), []).append(chunk)
    for form, chunks in groups.items():
        rows, lengths = np.array([(chunk.rows, chunk.place.length) for chunk in chunks], dtype=np.int64).T
        yield Alike(form, rows, lengths, [chunk.escapes for chunk in chunks] if form.codec != EXACT else ())


def of_outline(outline: Outline) -> Iterator[Alike]:
    """The chunks of an outline."""
    shares, forms = outline.shares, outline.forms
    columns, of_spec = _numbered(spec.columns for spec in shares.specs)
    stored, of_form = _numbered((form.ids, form.codec) for form in forms)
    pairs = of_spec[shares.table][outline.chunks["share"]] * len(stored) + of_form[outline.chunks["form"]]
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():
        form = Form(columns[pair // len(stored)], *stored[pair % len(stored)])
        at = np.flatnonzero(pairs == pair)
        escapes = [forms[each].escapes for each in outline.chunks["form"][at].tolist()] if form.codec != EXACT else ()
        yield Alike(form, outline.chunks["rows"][at], outline.chunks["length"][at], escapes)


def _numbered(values: Iterable[_T]) -> tuple[list[_T], Numbers]:
    """The different ones of some values, and of each value the number that it has among these."""
    numbers: dict[_T, int] = {}
    found = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(found, dtype=np.int64)


@lru_cache(maxsize=256)
def _widths(form: Form, name: str) -> _Widths:
    columns, ids, text = form
    codecs = codecs_of(text)
    if codecs is None:
        return _Widths((id_bytes(ids), *(row_bytes([column]) for column in columns)), ())
    if set(codecs) != {column.name for column in columns}:
        raise DamagedData(name, f"has a chunk with codecs for {', '.join(codecs)}, which are not its columns")
    try:
        records = [codecs[column.name].bytes_per_row(dim_of(column), column.dtype) for column in columns]
    except ValueError as error:
        raise DamagedData(name, f"has a chunk that its codecs cannot have encoded: {error}") from error
    return _Widths((id_bytes(ids), *records), tuple(dim_of(column) * itemsize(column.dtype) for column in columns))
