"""An outline: what planning a restore needs from many manifests, in columns (docs/spec/grid.md).

It is built from manifests, either to plan with or to be stored next to them: a restore of a grid then reads one object
instead of one per checkpoint. A stored outline is a copy. Each part in it is named by the digest of the object it was
copied from, so a reader knows whether that is still the current one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.format.bundle import Directory
from holdfast.format.manifest import BundleRef, Manifest, Place, RowsChunk, Segment
from holdfast.types import TableSpec

Numbers = NDArray[np.int64]
CHUNK_COLUMNS = (
    "share",
    "bundle",
    "offset",
    "length",
    "block",
    "rows",
    "first",
    "last",
    "form",
    "through",
    "segments",
)
_NOWHERE = Place(bundle=0, offset=0, length=0, block=0)


class Replacing(NamedTuple):
    """The checkpoints that a part is arranged by: ``checkpoints`` of a timeline, from ``start`` on."""

    timeline: int
    start: int
    checkpoints: int


class OutlinedPart(NamedTuple):
    """What one writer saved of a checkpoint, and the digest of the object that says so: its part list or manifest."""

    checkpoint: str
    rank: int
    digest: str
    replacing: Replacing


class Share(NamedTuple):
    """A part's rows of a table."""

    part: int
    spec: TableSpec
    start: int
    stop: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """The shares of many parts, in columns: there is one for every table of every checkpoint."""

    specs: tuple[TableSpec, ...]
    part: Numbers
    table: Numbers  # index of its spec
    start: Numbers
    stop: Numbers
    whole: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, number: int) -> Share:
        spec = self.specs[self.table[number]]
        whole = bool(self.whole[number])
        return Share(int(self.part[number]), spec, int(self.start[number]), int(self.stop[number]), whole)

    def of_part(self, part: int) -> list[Share]:
        """The shares of one part."""
        return [self[number] for number in np.flatnonzero(self.part == part).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outline:
    """Parts, their shares of tables, and the chunks of these in columns. Shares and chunks come in the parts' order."""

    parts: tuple[OutlinedPart, ...]
    timelines: tuple[tuple[str, ...], ...]
    shares: Shares
    bundles: tuple[BundleRef, ...]
    forms: tuple[RowsChunk, ...]  # chunks without place, rows and segments: what many of them have in common
    chunks: Mapping[str, Numbers]  # by CHUNK_COLUMNS; ``segments`` counts them
    segments: NDArray[np.int32]  # replaced, rows: of all chunks, one after another
    directories: Mapping[str, Directory] = field(default_factory=dict)  # block checksums of bundles, by name
    _made: dict[int, RowsChunk] = field(default_factory=dict)
    _alone: dict[int, bool] = field(default_factory=dict)
    _rows: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        manifests: Iterable[Manifest],
        digests: Iterable[str] | None = None,
        directories: Mapping[str, Directory] | None = None,
    ) -> Outline:
        """The outline of these manifests; ``digests`` name them where it will be stored."""
        manifests = list(manifests)
        making = _Making()
        for manifest, digest in zip(manifests, digests or [""] * len(manifests), strict=True):
            making.add(manifest, digest)
        return making.done(directories or {})

    def chunk(self, index: int) -> RowsChunk:
        """A chunk as its manifest has it; ``place.bundle`` is an index into the outline's own bundles."""
        if index not in self._made:
            of = {name: int(column[index]) for name, column in self.chunks.items()}
            stop = int(self.chunks["segments"][: index + 1].sum())
            segments = self.segments[stop - of["segments"] : stop].tolist()
            self._made[index] = replace(
                self.forms[of["form"]],
                place=Place(bundle=of["bundle"], offset=of["offset"], length=of["length"], block=of["block"]),
                rows=of["rows"],
                first=of["first"],
                last=of["last"],
                segments=tuple(map(Segment._make, segments)),
                through=of["through"],
            )
        return self._made[index]

    def stands_alone(self, part: int) -> bool:
        """Whether a part has all rows of its tables to itself, as that of a single writer does."""
        if not self._alone:
            shares = self.shares
            rows = np.array([spec.rows for spec in shares.specs], dtype=np.int64)[shares.table]
            lacking = (shares.start != 0) | (shares.stop != rows)
            found = np.bincount(shares.part, lacking, minlength=len(self.parts)) == 0
            self._alone.update(enumerate(found.tolist()))
        return self._alone[part] and self.parts[part].rank == 0

    def rows_of(self, part: int) -> int:
        """The row records of a part."""
        if not self._rows:
            rows = np.zeros(len(self.parts), dtype=np.int64)
            np.add.at(rows, self.shares.part[self.chunks["share"]], self.chunks["rows"])
            self._rows.update(enumerate(rows.tolist()))
        return self._rows[part]

    def visible(self, replacing: Numbers) -> Numbers:
        """How many leading records of each chunk are needed after this many replacing checkpoints."""
        counts = self.chunks["segments"]
        replaced, rows = self.segments[:, 0], self.segments[:, 1]
        gone = (replaced >= 0) & (replaced < np.repeat(replacing, counts))
        owner = np.repeat(np.arange(len(counts)), counts)
        lost = np.bincount(owner[gone], weights=rows[gone], minlength=len(counts)).astype(np.int64)
        return self.chunks["rows"] - lost


class _Making:
    """Collects manifests; what many of them have in common is kept once."""

    def __init__(self) -> None:
        self._parts: list[OutlinedPart] = []
        self._timelines: list[tuple[str, ...]] = []
        self._specs: list[TableSpec] = []
        self._spec_of: dict[str, int] = {}  # the last one of each table
        self._shares: list[tuple[int, int, int, int, bool]] = []
        self._bundles: dict[BundleRef, int] = {}
        self._forms: dict[tuple[str | None, str, tuple[int, ...], float], int] = {}
        self._chunks: list[tuple[int, ...]] = []
        self._segments: list[Segment] = []

    def add(self, manifest: Manifest, digest: str) -> None:
        replacing = self._replacing(manifest.replacing)
        self._parts.append(OutlinedPart(manifest.checkpoint, manifest.rank, digest, replacing))
        for part in manifest.tables:
            spec = self._spec(part.spec)
            self._shares.append((len(self._parts) - 1, spec, part.start, part.stop, part.whole))
            for chunk in part.chunks:
                self._add_chunk(chunk, manifest.bundles[chunk.place.bundle])

    def _spec(self, spec: TableSpec) -> int:
        known = self._spec_of.get(spec.name)
        if known is not None and self._specs[known] == spec:
            return known
        self._specs.append(spec)
        self._spec_of[spec.name] = len(self._specs) - 1
        return len(self._specs) - 1

    def _add_chunk(self, chunk: RowsChunk, bundle: BundleRef) -> None:
        place = chunk.place
        form = chunk.ids, chunk.codec, chunk.escapes, chunk.loss
        self._chunks.append(
            (
                len(self._shares) - 1,
                self._bundles.setdefault(bundle, len(self._bundles)),
                place.offset,
                place.length,
                place.block,
                chunk.rows,
                chunk.first,
                chunk.last,
                self._forms.setdefault(form, len(self._forms)),
                chunk.through,
                len(chunk.segments),
            )
        )
        self._segments += chunk.segments

    def _replacing(self, checkpoints: tuple[str, ...]) -> Replacing:
        """The checkpoints as a stretch of a timeline that is there already, or that is made longer, or of a new one."""
        for number, timeline in enumerate(self._timelines):
            start = timeline.index(checkpoints[0]) if checkpoints and checkpoints[0] in timeline else 0
            shared = common(timeline[start:], checkpoints)
            if shared == len(checkpoints) or (shared and start + shared == len(timeline)):
                self._timelines[number] = timeline[:start] + checkpoints + timeline[start + len(checkpoints) :]
                return Replacing(number, start, len(checkpoints))
        self._timelines.append(checkpoints)
        return Replacing(len(self._timelines) - 1, 0, len(checkpoints))

    def done(self, directories: Mapping[str, Directory]) -> Outline:
        shares = np.array(self._shares, dtype=np.int64).reshape(-1, 5).T
        columns = np.array(self._chunks, dtype=np.int64).reshape(-1, len(CHUNK_COLUMNS)).T
        return Outline(
            parts=tuple(self._parts),
            timelines=tuple(self._timelines),
            shares=Shares(
                specs=tuple(self._specs),
                part=shares[0],
                table=shares[1],
                start=shares[2],
                stop=shares[3],
                whole=shares[4] > 0,
            ),
            bundles=tuple(self._bundles),
            forms=tuple(_form(*form) for form in self._forms),
            chunks=dict(zip(CHUNK_COLUMNS, columns, strict=True)),
            segments=np.array(self._segments, dtype=np.int32).reshape(-1, 2),
            directories={bundle.name: directories[bundle.name] for bundle in self._bundles} if directories else {},
        )


def _form(ids: str | None, codec: str, escapes: tuple[int, ...], loss: float) -> RowsChunk:
    return RowsChunk(
        place=_NOWHERE,
        rows=0,
        first=0,
        last=0,
        ids=ids,
        codec=codec,
        segments=(),
        through=0,
        escapes=escapes,
        loss=loss,
    )


def common(ours: tuple[str, ...], theirs: tuple[str, ...]) -> int:
    """How many of both, from their beginnings, are the same."""
    count = min(len(ours), len(theirs))
    if ours[:count] == theirs[:count]:
        return count
    return next(number for number, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
