"""Outlines as objects: a sealed document with the numbers of many chunks in few long strings (docs/spec/grid.md)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.format.document import parse, seal, unseal
from holdfast.format.manifest import BundleRef, chunk_from_json, chunk_to_json, table_spec_from_json, table_spec_to_json
from holdfast.format.outline import CHUNK_COLUMNS, Outline, OutlinedPart, Replacing, Shares
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
        "parts": [[part.checkpoint, part.rank, part.digest, *part.replacing] for part in outline.parts],
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
    return parse(name, lambda: _checked(_from_json(body)))


_FORM = 4  # a chunk's place, rows, first and last come before what it shares with others


def _from_json(body: dict[str, Any]) -> Outline:
    specs = [table_spec_from_json(spec) for spec in body["tables"]]
    chunks = {name: _numbers(body["chunks"][name]).astype(np.int64) for name in CHUNK_COLUMNS}
    checksums = _numbers(body["checksums"]).astype(np.uint32)
    stops = np.cumsum([0, *(blocks for *_, blocks in body["bundles"])]).tolist()
    if stops[-1] != len(checksums):
        raise ValueError(f"{len(checksums)} checksums for {stops[-1]} blocks")
    return Outline(
        parts=tuple(OutlinedPart(c, r, d, Replacing(*replacing)) for c, r, d, *replacing in body["parts"]),
        timelines=tuple(map(tuple, body["timelines"])),
        shares=_shares(body["shares"], specs),
        bundles=tuple(BundleRef(name=n, size_bytes=s, head_bytes=h, digest=d) for n, s, h, d, _ in body["bundles"]),
        forms=tuple(chunk_from_json([[0, 0, 0, 0], 0, 0, 0, *form]) for form in body["forms"]),
        chunks=chunks,
        segments=np.stack([_numbers(column).astype(np.int32) for column in body["segments"]], axis=1),
        directories={
            bundle[0]: checksums[start:stop]
            for bundle, start, stop in zip(body["bundles"], stops[:-1], stops[1:], strict=True)
        },
    )


def _shares(body: dict[str, Any], specs: list[TableSpec]) -> Shares:
    part, table, start, stop, whole = (_numbers(body[name]).astype(np.int64) for name in _SHARE_COLUMNS)
    return Shares(specs=tuple(specs), part=part, table=table, start=start, stop=stop, whole=whole > 0)


def _checked(outline: Outline) -> Outline:
    """Refuse numbers that point to nothing."""
    shares, chunks = outline.shares, outline.chunks
    _require_within("a share", shares.part, len(outline.parts), "part")
    _require_within("a share", shares.table, len(shares.specs), "table")
    _require_within("a chunk", chunks["share"], len(shares), "share")
    _require_within("a chunk", chunks["bundle"], len(outline.bundles), "bundle")
    _require_within("a chunk", chunks["form"], len(outline.forms), "form")
    of_shares = (shares.part, shares.table, shares.start, shares.stop, shares.whole)
    if len(set(map(len, chunks.values()))) != 1 or len(set(map(len, of_shares))) != 1:
        raise ValueError("its columns are not of one length")
    counts = outline.chunks["segments"]
    if int(counts.sum()) != len(outline.segments) or int(counts.min(initial=0)) < 0:
        raise ValueError("its segments are not those of its chunks")
    for part in outline.parts:
        timeline, start, count = part.replacing
        if min(timeline, start, count) < 0 or start + count > len(outline.timelines[timeline]):
            raise ValueError("a part is arranged by checkpoints that are not there")
    return outline


def _require_within(who: str, numbers: NDArray[Any], end: int, what: str) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
        raise ValueError(f"{who} names a {what} that is not there")


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
