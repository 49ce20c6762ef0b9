"""What a grid looks like: how much each checkpoint wrote, and which later one replaced it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.checkpoint.grid.bundles import replacing_in
from holdfast.checkpoint.read.fetcher import Manifests
from holdfast.codec.chunk import record_bytes
from holdfast.format.manifest import ALIVE, Manifest, RowsChunk, Segment, TablePart
from holdfast.format.rows import id_bytes
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """What one checkpoint wrote above its baseline, in bytes of row records with their ids.

    Args:
        checkpoint: The checkpoint.
        alive_bytes: Bytes that no later checkpoint has replaced, as far as it is arranged.
        replaced_bytes: Bytes replaced, by the id of the checkpoint that replaced them.
        bundles: How many bundles hold them.
        rounds: How many rounds of rearranging have moved some of them.
        arranged_by: The newest checkpoint whose replacements are arranged. None: not arranged yet.
    """

    checkpoint: CheckpointInfo
    alive_bytes: int
    replaced_bytes: dict[str, int] = field(default_factory=dict)
    bundles: int = 0
    rounds: int = 0
    arranged_by: str | None = None

    @property
    def size_bytes(self) -> int:
        """Live and replaced bytes together."""
        return self.alive_bytes + sum(self.replaced_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPicture:
    """The grid that a checkpoint depends on.

    Args:
        baseline: The baseline of the grid.
        cohorts: What each checkpoint above it wrote, oldest first.
        unused_bytes: Bytes in bundles of row records that no checkpoint of the grid refers to.
    """

    baseline: CheckpointInfo
    cohorts: tuple[Cohort, ...]
    unused_bytes: int

    @property
    def alive_bytes(self) -> int:
        """Bytes that the newest checkpoint may need."""
        return sum(cohort.alive_bytes for cohort in self.cohorts)

    @property
    def size_bytes(self) -> int:
        """The size of all row records above the baseline."""
        return sum(cohort.size_bytes for cohort in self.cohorts)


def draw_grid(infos: Sequence[CheckpointInfo], history: Sequence[Manifests], rounds: Sequence[int]) -> GridPicture:
    """The picture of a lineage, baseline first, with its parts and how many rounds touched each of them."""
    ids = [info.id for info in infos]
    cohorts = [
        _cohort(info, parts, ids[age + 1 :], touched)
        for age, (info, parts, touched) in enumerate(zip(infos, history, rounds, strict=True))
        if age
    ]
    return GridPicture(baseline=infos[0], cohorts=tuple(cohorts), unused_bytes=_unused_bytes(history[1:]))


def _cohort(info: CheckpointInfo, parts: Manifests, later: Sequence[str], rounds: int) -> Cohort:
    alive = 0
    replaced = dict.fromkeys(later, 0)
    through = len(later)
    for manifest in parts:
        common = replacing_in(manifest, later)
        for part in manifest.tables:
            for chunk in part.chunks:
                through = min(through, chunk.through if chunk.visible(common) else through)
                for label, rows in chunk.segments or (Segment(ALIVE, chunk.rows),):
                    size = rows * _record_bytes(part, chunk)
                    if 0 <= label < common:
                        replaced[later[label]] += size
                    else:
                        alive += size
    return Cohort(
        checkpoint=info,
        alive_bytes=alive,
        replaced_bytes={by: size for by, size in replaced.items() if size},
        bundles=len({bundle.name for manifest in parts for bundle in manifest.bundles}),
        rounds=rounds,
        arranged_by=later[through - 1] if through else None,
    )


def _record_bytes(part: TablePart, chunk: RowsChunk) -> int:
    return record_bytes(part.spec.columns, chunk.codec) + id_bytes(chunk.ids)


def _unused_bytes(history: Iterable[Manifests]) -> int:
    """Bodies of bundles less the chunks in them."""
    used: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for parts in history:
        for manifest in parts:
            for name, length in _chunk_lengths(manifest):
                used[name] = used.get(name, 0) + length
            sizes |= {bundle.name: bundle.size_bytes - bundle.head_bytes for bundle in manifest.bundles}
    return sum(sizes[name] - used.get(name, 0) for name in sizes)


def _chunk_lengths(manifest: Manifest) -> Iterable[tuple[str, int]]:
    places = [chunk.place for part in manifest.tables for chunk in part.chunks]
    places += [chunk.place for chunk in manifest.state]
    return ((manifest.bundles[place.bundle].name, place.length) for place in places)
