"""What a round writes: bundles of records that were moved, and manifests that point to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.grid.index import ChunkKey
from holdfast.checkpoint.grid.split import Records
from holdfast.checkpoint.write.part_writer import row_members
from holdfast.format.bundle import Directory, Member, build_head, checksums, read_directory
from holdfast.format.document import digest
from holdfast.format.manifest import ALIVE, BundleRef, Manifest, Place, RowsChunk, StateChunk, TablePart
from holdfast.format.outline import common
from holdfast.storage import Buffer, Store
from holdfast.types import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Records that were taken out of the chunk ``source`` of a cohort."""

    cohort: int
    source: ChunkKey
    spec: TableSpec
    records: Records
    codec: str
    loss: float = 0.0  # of the chunk they were in
    through: int

    @property
    def size_bytes(self) -> int:
        """The size of the moved records."""
        return self.records.data.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A chunk and its bundle, whose index in a manifest is not known yet."""

    bundle: BundleRef
    chunk: RowsChunk

    @property
    def key(self) -> ChunkKey:
        """What an index knows it by."""
        return self.bundle.name, self.chunk.place.offset


def put_bundle(store: Store, name: str, moved: Sequence[Moved]) -> tuple[list[Placed], Directory]:
    """Store moved records as one bundle, a chunk each, in their order; also its block checksums."""
    members: list[Member] = []
    directory: list[int] = []
    starts: list[tuple[int, int]] = []  # of each chunk: in the body, in the directory
    bodies: list[Buffer] = []
    offset = 0
    for number, each in enumerate(moved):
        records = each.records
        members += row_members(
            number, each.spec, records.rows, records.ids, offset, codec=each.codec, escapes=records.escapes
        )
        starts.append((offset, len(directory)))
        bodies.append(records.data.data)
        directory += checksums(records.data.data)
        offset += records.data.nbytes
    head = build_head(members, offset, directory)
    store.put(name, [head, *bodies])
    bundle = BundleRef(name=name, size_bytes=len(head) + offset, head_bytes=len(head), digest=digest(head))
    placed = [
        Placed(bundle=bundle, chunk=_chunk(each, len(head) + at, block))
        for each, (at, block) in zip(moved, starts, strict=True)
    ]
    return placed, read_directory(memoryview(head), name=name).copy()


def _chunk(moved: Moved, offset: int, block: int) -> RowsChunk:
    records = moved.records
    return RowsChunk(
        place=Place(bundle=0, offset=offset, length=records.data.nbytes, block=block),
        rows=records.rows,
        first=records.first,
        last=records.last,
        ids=records.ids,
        codec=moved.codec,
        segments=records.segments,
        through=moved.through,
        escapes=records.escapes,
        loss=moved.loss,
    )


def chunks_of(manifest: Manifest, part: TablePart) -> list[Placed]:
    """A table's chunks with their bundles."""
    return [Placed(bundle=manifest.bundles[chunk.place.bundle], chunk=chunk) for chunk in part.chunks]


def replacing_in(manifest: Manifest, later: Sequence[str]) -> int:
    """How many of the checkpoints that a manifest was arranged by are also on this timeline, counted from its first."""
    return common(manifest.replacing, tuple(later))


def rebuild(manifest: Manifest, moved: Mapping[ChunkKey, Sequence[Placed]], replacing: Sequence[str]) -> Manifest:
    """The manifest with every moved chunk replaced by those it became, arranged by the checkpoints ``replacing``."""
    known = replacing_in(manifest, replacing)
    index = _BundleIndex()
    state = tuple(replace(chunk, place=index.place(manifest.bundles, chunk)) for chunk in manifest.state)
    tables = []
    for part in manifest.tables:
        became = [new for old in chunks_of(manifest, part) for new in moved.get(old.key, [_in_view(old, known)])]
        became.sort(key=lambda placed: placed.chunk.first)
        chunks = tuple(replace(p.chunk, place=index.place([p.bundle], p.chunk, 0)) for p in became)
        tables.append(replace(part, chunks=chunks))
    return replace(
        manifest, tables=tuple(tables), state=state, bundles=tuple(index.bundles.values()), replacing=tuple(replacing)
    )


def _in_view(placed: Placed, common: int) -> Placed:
    """A chunk that stays where it is; what checkpoints of a timeline that was left replaced lives again."""
    chunk = placed.chunk
    segments = tuple(
        segment if segment.replaced < common else segment._replace(replaced=ALIVE) for segment in chunk.segments
    )
    return replace(placed, chunk=replace(chunk, segments=segments, through=min(chunk.through, common)))


class _BundleIndex:
    """The bundles of a manifest in the order they are first referred to."""

    def __init__(self) -> None:
        self.bundles: dict[str, BundleRef] = {}

    def place(self, bundles: Sequence[BundleRef], chunk: RowsChunk | StateChunk, number: int | None = None) -> Place:
        bundle = bundles[chunk.place.bundle if number is None else number]
        self.bundles.setdefault(bundle.name, bundle)
        return replace(chunk.place, bundle=list(self.bundles).index(bundle.name))


def bundle_names(manifests: Iterable[Manifest]) -> set[str]:
    """Every bundle that the manifests refer to."""
    return {bundle.name for manifest in manifests for bundle in manifest.bundles}
