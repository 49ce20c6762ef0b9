"""Which checkpoint comes next for weights that hold an earlier one, and how much of it must be read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import lineage
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.codec.chunk import escapes_name
from holdfast.format.catalog import Entry
from holdfast.format.layout import IDS
from holdfast.types import CheckpointInfo, TableSpec


class Reload(Enum):
    """Why an update had to read all rows.

    Attributes:
        FIRST: Nothing was applied yet.
        BASELINE: A new baseline took over.
        TIMELINE: Training went back and started a new timeline.
        DROPPED: The run no longer holds the path from what was applied.
    """

    FIRST = "nothing was applied yet"
    BASELINE = "a new baseline took over"
    TIMELINE = "training went back and started a new timeline"
    DROPPED = "the run no longer holds the path from what was applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The checkpoint that the weights hold, and what it stood on, baseline first, itself last."""

    info: CheckpointInfo
    lineage: tuple[str, ...]


def next_checkpoint(head: Head, applied: Applied | None, *, each: bool) -> Entry | None:
    """The newest live checkpoint, or with ``each`` the one after the applied one; None if that is the newest."""
    live = [entry for entry in head.entries if not entry.info.abandoned]
    if not live or (applied is not None and live[-1].info.id == applied.info.id):
        return None
    if not each or applied is None:
        return live[-1]
    return next(iter(_after(head, applied)), live[-1])


def behind(head: Head, applied: Applied | None) -> int:
    """How many living checkpoints were committed after the applied one."""
    if applied is None:
        return sum(not entry.info.abandoned for entry in head.entries)
    return len(_after(head, applied))


def _after(head: Head, applied: Applied) -> list[Entry]:
    ids = [entry.info.id for entry in head.entries]
    if applied.info.id in ids:
        later = head.entries[ids.index(applied.info.id) + 1 :]
    else:
        later = tuple(entry for entry in head.entries if entry.info.step > applied.info.step)
    return [entry for entry in later if not entry.info.abandoned]


def standing(head: Head, applied: Applied | None, entry: Entry) -> int | Reload:
    """How many of the checkpoints that ``entry`` depends on, baseline first, need not be reread.

    If it descends from the applied one, the rows above those that both share are enough: a differential checkpoint
    holds all rows that the one before it held. If training went back, rows may have moved that were not moved again.
    """
    if applied is None:
        return Reload.FIRST
    stack = [each.info.id for each in lineage(head, entry.info.id)]
    shared = _common(stack, applied.lineage)
    if shared == len(applied.lineage):
        return shared
    unlike = _unlike(head, applied.info, entry.info)
    if unlike is not None:
        return unlike
    return shared or Reload.BASELINE


def _common(first: list[str], second: tuple[str, ...]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


def _unlike(head: Head, applied: CheckpointInfo, info: CheckpointInfo) -> Reload | None:
    """Why training may not have come from the applied checkpoint to this one; None if it did."""
    entries = head.by_id
    if applied.id in entries:
        return Reload.TIMELINE if entries[applied.id].info.abandoned else None
    parent = info.parent
    while parent is not None and parent != applied.id and parent in entries:
        parent = entries[parent].info.parent
    # Only a trainer that takes the run over goes back, and that raises the term.
    if parent == applied.id or (info.term == applied.term and info.step > applied.step):
        return None
    return Reload.DROPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """What to read of a table: generations, oldest first, in which a row may occur more than once."""

    plan: TablePlan  # of the whole table
    generations: tuple[tuple[Read, ...], ...]

    @classmethod
    def above(cls, plan: TablePlan, checkpoints: int, standing: int) -> TableChanges:
        """The part of a plan above the first ``standing`` checkpoints."""
        first = checkpoints - len(plan.generations)  # the checkpoint that wrote the plan's first generation
        return cls(plan=plan, generations=plan.generations[max(0, standing - first) :])

    @property
    def spec(self) -> TableSpec:
        """The table."""
        return self.plan.spec

    @property
    def read_bytes(self) -> int:
        """Bytes of the ids and weights in them."""
        return sum(_read_bytes(read) for generation in self.generations for read in generation)


def _read_bytes(read: Read) -> int:
    weight = read.part.spec.weight.name
    names = (IDS, weight, escapes_name(weight))
    return sum(stop - start for start, stop in read.ranges([each for each in read.columns if each.name in names]))
