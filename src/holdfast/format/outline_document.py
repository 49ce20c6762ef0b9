"""Outlines as objects: a sealed document with the numbers of many chunks in a few long strings (docs/spec/grid.md)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.format import fields
from holdfast.format.chunk_check import ChunkNumbers, check_chunks, check_places
from holdfast.format.document import Json, parse, seal, unseal
from holdfast.format.manifest import (
    ALIVE,
    bundle_from_json,
    chunk_from_json,
    chunk_to_json,
    table_spec_from_json,
    table_spec_to_json,
)
from holdfast.format.manifest_check import bundle_numbers, check_forms
from holdfast.format.outline import CHUNK_COLUMNS, Outline, OutlinedPart, Replacing, Shares
from holdfast.format.rows import GAP_TYPES
from holdfast.types import TableSpec

KIND, VERSION = "outline", 1
_SHARE_COLUMNS = ("part", "table", "start", "stop", "whole")
_KINDS = ("u1", "u2", "u4", "i1", "i2", "i4", "i8")


def encode_outline(outline: Outline) -> bytes:
    """The object of an outline that knows the digests of its parts and the checksums of its bundles."""
    specs = {spec: number for number, spec in enumerate(dict.fromkeys(outline.shares.specs))}
    tables = np.array([specs[spec] for spec in outline.shares.specs], dtype=np.int64)
    directories = [outline.directories[bundle.name] for bundle in outline.bundles]
    body = {
        "parts": [
            [part.checkpoint, part.rank, part.digest, *part.replacing, lived]
            for part, lived in zip(outline.parts, _lived(outline), strict=True)
        ],
        "timelines": [list(timeline) for timeline in outline.timelines],
        "tables": [table_spec_to_json(spec) for spec in specs],
        "shares": {
            "part": _text(outline.shares.part),
            "table": _text(tables[outline.shares.table]),
            "start": _text(outline.shares.start),
            "stop": _text(outline.shares.stop),
            "whole": _text(outline.shares.whole),
        },
        "forms": [chunk_to_json(form)[_FORM:] for form in outline.forms],
        "bundles": [
            [bundle.name, bundle.size_bytes, bundle.head_bytes, bundle.digest, len(directory)]
            for bundle, directory in zip(outline.bundles, directories, strict=True)
        ],
        "chunks": {name: _text(outline.chunks[name]) for name in CHUNK_COLUMNS},
        "segments": [_text(outline.segments[:, 0]), _text(outline.segments[:, 1])],
        "checksums": _text(np.concatenate([np.zeros(0, dtype="<u4"), *directories])),
    }
    return seal(KIND, VERSION, body)


def decode_outline(data: bytes | bytearray | memoryview, *, name: str) -> Outline:
    """Parse and check the object ``name``, whose bytes were compared with their digest."""
    body = unseal(KIND, VERSION, data, name=name, verified=True)
    return parse(name, lambda: _checked(_from_json(body), [part[-1] for part in body["parts"]]))


_FORM = 4  # a chunk's place, rows, first and last come before what it shares with others


def _from_json(body: Json) -> Outline:
    specs = [table_spec_from_json(spec) for spec in fields.items(body["tables"], "tables")]
    bundles = [bundle_from_json(bundle[:4]) for bundle in fields.items(body["bundles"], "bundles")]
    checksums = _numbers(body["checksums"]).astype(np.uint32)
    counts = [fields.integer(bundle[4], "blocks", most=len(checksums)) for bundle in body["bundles"]]
    stops = np.cumsum([0, *counts]).tolist()
    if stops[-1] != len(checksums):
        raise ValueError(f"there are {len(checksums)} checksums for {stops[-1]} blocks")
    return Outline(
        parts=tuple(map(_part, fields.items(body["parts"], "parts"))),
        timelines=tuple(fields.texts(timeline, "timelines") for timeline in body["timelines"]),
        shares=_shares(body["shares"], specs),
        bundles=tuple(bundles),
        forms=tuple(chunk_from_json([[0, 0, 0, 0], 0, 0, 0, *form]) for form in fields.items(body["forms"], "forms")),
        chunks={name: _numbers(body["chunks"][name]).astype(np.int64) for name in CHUNK_COLUMNS},
        segments=_segments(body["segments"]),
        directories={
            bundle.name: checksums[start:stop]
            for bundle, start, stop in zip(bundles, stops[:-1], stops[1:], strict=True)
        },
    )


def _part(body: Json) -> OutlinedPart:
    checkpoint, rank, digest, *replacing, _ = fields.items(body, "a part", 7)
    numbers = [fields.integer(number, "what a part is arranged by") for number in replacing]
    return OutlinedPart(
        fields.text(checkpoint, "checkpoint"),
        fields.integer(rank, "rank"),
        fields.text(digest, "the digest of a part"),
        Replacing(*numbers),
    )


def _shares(body: Json, specs: list[TableSpec]) -> Shares:
    part, table, start, stop, whole = (_numbers(body[name]).astype(np.int64) for name in _SHARE_COLUMNS)
    if np.any((whole < 0) | (whole > 1)):
        raise ValueError("a share is neither whole nor not")
    return Shares(specs=tuple(specs), part=part, table=table, start=start, stop=stop, whole=whole > 0)


def _segments(body: Json) -> NDArray[np.int32]:
    replaced, rows = (_numbers(column) for column in fields.items(body, "segments", 2))
    if len(replaced) != len(rows):
        raise ValueError("the columns of segments are not of one length")
    found = np.empty((len(rows), 2), dtype=np.int32)
    for at, column in enumerate((replaced, rows)):
        if not -1 <= column.min(initial=0) <= column.max(initial=0) <= np.iinfo(np.int32).max:
            raise ValueError("a number of a segment is below -1, or does not fit into 32 bits")
        found[:, at] = column
    return found


def _lived(outline: Outline) -> list[int]:
    """Of each part, how many checkpoints its replaced records lived, added up: see Manifest.lived."""
    replaced, rows = np.ascontiguousarray(outline.segments.T, dtype=np.int64)
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum((replaced - ALIVE) * rows)])
    stops = np.cumsum(outline.chunks["segments"])
    found = np.zeros(len(outline.parts), dtype=np.int64)
    lived = sums[stops] - sums[stops - outline.chunks["segments"]]
    np.add.at(found, outline.shares.part[outline.chunks["share"]], lived)
    return list(map(int, found))


def _checked(outline: Outline, lived: list[Json]) -> Outline:
    """Refuse numbers that point to nothing, or do not agree with each other, or with what they shall add up to."""
    fields.texts([bundle.name for bundle in outline.bundles], "bundles")
    fields.texts([part.digest for part in outline.parts], "parts")
    for part in outline.parts:
        timeline, start, count = part.replacing
        if timeline >= len(outline.timelines) or start + count > len(outline.timelines[timeline]):
            raise ValueError("a part is arranged by checkpoints that are not there")
    if any(form.segments or form.through for form in outline.forms):
        raise ValueError("a form is arranged")
    check_forms(outline.forms)
    _check_shares(outline)
    _check_chunks(outline)
    if lived != _lived(outline):
        raise ValueError("the segments of a part do not add up to what it says they do")
    return outline


def _check_shares(outline: Outline) -> None:
    shares = outline.shares
    if len({len(shares.part), len(shares.table), len(shares.start), len(shares.stop), len(shares.whole)}) != 1:
        raise ValueError("the columns of shares are not of one length")
    _require_within("a share", shares.part, len(outline.parts), "part")
    _require_within("a share", shares.table, len(shares.specs), "table")
    rows = np.array([spec.rows for spec in shares.specs], dtype=np.int64)[shares.table]
    if np.any((shares.start < 0) | (shares.start > shares.stop) | (shares.stop > rows)):
        raise ValueError("a share leaves its table")
    names = list(dict.fromkeys(spec.name for spec in shares.specs))
    named = np.array([names.index(spec.name) for spec in shares.specs], dtype=np.int64)[shares.table]
    own = np.sort(shares.part * len(names) + named)
    if np.any(own[1:] == own[:-1]):
        raise ValueError("a part has two shares of a table")


def _require_within(who: str, numbers: NDArray[Any], end: int, what: str) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
        raise ValueError(f"{who} names a {what} that is not there")


def _check_chunks(outline: Outline) -> None:
    columns = {name: column for name, column in outline.chunks.items() if name != "form"}
    form, shares = outline.chunks["form"], outline.shares
    if len(form) != len(columns["share"]):
        raise ValueError("the columns of chunks are not of one length")
    _require_within("a chunk", form, len(outline.forms), "form")
    arranged = np.array([part.replacing.checkpoints for part in outline.parts], dtype=np.int64)[shares.part]
    check_chunks(
        ChunkNumbers(
            columns=columns,
            segments=outline.segments.astype(np.int64),
            shares=np.stack([shares.start, shares.stop, shares.whole.astype(np.int64), arranged], axis=1),
            contiguous=np.array([each.ids is None for each in outline.forms], dtype=np.bool_)[form],
            gaps=np.array([each.ids in GAP_TYPES for each in outline.forms], dtype=np.bool_)[form],
        )
    )
    blocks = [len(outline.directories[bundle.name]) for bundle in outline.bundles]
    check_places(columns, bundle_numbers(outline.bundles, blocks))


def _text(numbers: NDArray[Any]) -> list[str]:
    """Numbers in the smallest type that holds them all: its name, and their bytes."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    kind = next(kind for kind in _KINDS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return [kind, b64encode(numbers.astype(f"<{kind}").tobytes()).decode("ascii")]


def _numbers(body: list[str]) -> NDArray[Any]:
    kind, text = body
    if kind not in _KINDS:
        raise ValueError(f"numbers of type {kind!r}")
    return np.frombuffer(b64decode(text, validate=True), dtype=f"<{kind}")
