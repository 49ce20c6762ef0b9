"""Every change a commit can make to a run: pure functions from the head to the next catalog's draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.commit.chain import Change, Draft, Head
from holdfast.errors import BaseDropped, CheckpointNotFound, SaveFailed, TakenOver
from holdfast.format.catalog import Entry, Garbage, OutlineRef, Ref
from holdfast.policy import Retention, closure
from holdfast.types import Doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The writer's clock dates checkpoints; the store's clock, which costs requests to read, times deletions."""

    wall_s: Callable[[], float]
    store_s: Callable[[], float]


def take_over() -> Change:
    """Raise the term: from now on a writer of an older term can commit nothing."""

    def change(head: Head | None) -> Draft:
        if head is None:
            return Draft(reason="create", term=1, head=None, entries=(), is_event=True)
        return replace(_same(head, "take over"), term=head.catalog.term + 1, is_event=True)

    return change


def raise_term(term: int) -> Change:
    """Raise the term of a run that is ours: a writer of our own that cannot be ended commits nothing more."""

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        return replace(_same(head, "fence"), term=term + 1, is_event=True)

    return change


def add_checkpoint(entry: Entry, *, term: int, retention: Retention, clocks: Clocks, branches: bool = False) -> Change:
    """Append a checkpoint and drop what the retention policy lets go.

    With ``branches``, what the run holds of this step and later ones becomes an abandoned timeline in the same commit.
    """

    def change(head: Head | None) -> Draft | None:
        head = own(head, term)
        if entry.info.id in head.by_id:  # another writer of this save was first
            return None
        _refuse_dropped(entry, head)
        if entry.info.base is not None and entry.info.base not in head.by_id:
            raise BaseDropped(f"checkpoint {entry.info.id} depends on {entry.info.base}, which is no longer in the run")
        _require_folders(entry, head)
        before = [_left_behind(each, entry.info.step) for each in head.entries] if branches else head.entries
        draft = replace(_same(head, "save"), head=entry.info.id, entries=(*before, entry))
        return retain(_without_priority(draft, clocks.store_s), retention, clocks)

    return change


def add_priority(entry: Entry, *, term: int) -> Change:
    """Add rows saved between two checkpoints. They are of use on top of the newest checkpoint only."""

    def change(head: Head | None) -> Draft | None:
        head = own(head, term)
        if head.find(entry.info.id):
            return None
        _refuse_dropped(entry, head)
        if entry.info.base != head.catalog.head:
            raise SaveFailed(f"priority save {entry.info.id} came too late: a newer checkpoint exists")
        return replace(_same(head, "save rows"), priority=(*head.catalog.priority, entry))

    return change


def go_back(
    checkpoint: str | None, *, term: int, store_s: Callable[[], float], suspects: Collection[str] = ()
) -> Change:
    """Continue from an older checkpoint: what was ahead of it becomes an abandoned timeline.

    ``suspects`` are those of it that could not be restored; they stay until a verification has judged them.
    Rows saved after it are dropped, those on the newest checkpoint too: the training that they come from is left.
    """

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        order = [entry.info.id for entry in head.entries]
        if checkpoint is not None and checkpoint not in order:
            raise CheckpointNotFound(f"checkpoint {checkpoint} was dropped while it was being restored: resume again")
        ahead = order.index(checkpoint) + 1 if checkpoint is not None else 0
        left = (_abandon(entry, suspect=entry.info.id in suspects) for entry in head.entries[ahead:])
        entries = (*head.entries[:ahead], *left)
        stays = checkpoint == head.catalog.head
        draft = replace(_same(head, "drop rows" if stays else "go back"), head=checkpoint, entries=entries)
        return _without_priority(replace(draft, is_event=not stays), store_s)

    return change


def annotate(checkpoint: str, metrics: Mapping[str, float], *, term: int | None) -> Change:
    """Add metrics that arrived after the save."""

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        if checkpoint not in head.by_id:
            raise CheckpointNotFound(f"the run holds no checkpoint {checkpoint}")
        entries = tuple(
            _with_metrics(entry, metrics) if entry.info.id == checkpoint else entry for entry in head.entries
        )
        return replace(_same(head, "annotate"), entries=entries)

    return change


def settle_doubts(verdicts: Mapping[str, Doubt | None]) -> Change:
    """Clear (None) or condemn suspect checkpoints, by their ids. Administration: any term's."""

    def change(head: Head | None) -> Draft | None:
        head = own(head, None)
        entries = tuple(_settled(entry, verdicts) for entry in head.entries)
        return replace(_same(head, "verify"), entries=entries) if entries != head.entries else None

    return change


def prune(retention: Retention, *, term: int | None, clocks: Clocks) -> Change:
    """Apply a retention policy now."""
    return lambda head: retain(_same(own(head, term), "prune"), retention, clocks)


def forget_garbage(gone: frozenset[Garbage], *, term: int) -> Change:
    """These objects are gone from the store."""

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        garbage = tuple(item for item in head.garbage if item not in gone)
        return replace(_same(head, "collect"), garbage=garbage)

    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """A checkpoint's part list before and after a round, and the objects that nothing refers to any more."""

    before: Ref
    after: Ref
    freed: tuple[str, ...]
    rounds: tuple[str, ...]


class RecordMoved(Exception):
    """Another writer rearranged the same checkpoint meanwhile: plan again on the new head."""


def rearrange(rearranged: Mapping[str, Rearranged], *, term: int, clocks: Clocks) -> Change:
    """Let checkpoints stand on the records that a round wrote for them; what they hold stays the same."""

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        entries = dict(head.by_id)
        for checkpoint, update in rearranged.items():
            if checkpoint not in entries or entries[checkpoint].part_list != update.before:
                raise RecordMoved(checkpoint)
            entries[checkpoint] = replace(entries[checkpoint], part_list=update.after, rounds=update.rounds)
        dropped_s = clocks.store_s()
        garbage = (
            Garbage(folder=checkpoint, dropped_s=dropped_s, names=update.freed)
            for checkpoint, update in rearranged.items()
            if update.freed
        )
        draft = _same(head, "rearrange")
        return replace(draft, entries=tuple(entries.values()), garbage=(*draft.garbage, *garbage))

    return change


def outline(written: OutlineRef, *, term: int, clocks: Clocks) -> Change:
    """Let an outline take the place of the writer's last one of the same grid."""

    def change(head: Head | None) -> Draft:
        head = own(head, term)
        if written.baseline not in head.by_id:
            raise CheckpointNotFound(f"checkpoint {written.baseline} was dropped while its outline was being written")
        key = written.baseline, written.rank
        old = [each for each in head.catalog.outlines if (each.baseline, each.rank) == key]
        draft = _without(_same(head, "outline"), old, clocks)
        return replace(draft, outlines=(*draft.outlines, written))

    return change


def own(head: Head | None, term: int | None) -> Head:
    """The head, if this writer may still commit. ``term`` None: administration between two terms, allowed always."""
    if head is None:
        raise CheckpointNotFound("the run is empty")
    if term is not None and head.catalog.term != term:
        raise TakenOver(
            f"another trainer ({head.catalog.writer}) took over this run: its term is {head.catalog.term}, ours was "
            f"{term}. Nothing was damaged, but this trainer can no longer commit: stop it, or give it its own URL"
        )
    return head


def retain(draft: Draft, retention: Retention, clocks: Clocks) -> Draft:
    """Drop what neither the policy nor a kept checkpoint needs."""
    if retention.keeps_all:
        return draft
    infos = [entry.info for entry in draft.entries]
    keep = closure(infos, retention.kept(infos, clocks.wall_s()))
    if len(keep) == len(infos):
        return draft
    dropped_s = clocks.store_s()
    entries = tuple(entry for entry in draft.entries if entry.info.id in keep)
    needed = {folder for entry in entries for folder in entry.folders}
    needed |= {each.folder for each in draft.outlines if each.baseline in keep}
    dropped = dict.fromkeys(folder for entry in draft.entries for folder in entry.folders if folder not in needed)
    garbage = tuple(Garbage(folder=folder, dropped_s=dropped_s) for folder in dropped)
    draft = replace(draft, entries=entries, garbage=(*draft.garbage, *garbage))
    if any(entry.info.base not in keep for entry in draft.priority):
        draft = _without_priority(draft, clocks.store_s)
    return _without(draft, [each for each in draft.outlines if each.baseline not in keep], clocks)


def _without(draft: Draft, outlines: Sequence[OutlineRef], clocks: Clocks) -> Draft:
    """Drop outlines. Whoever reads a checkpoint of their grid holds a lease on its baseline, and so keeps them."""
    if not outlines:
        return draft
    dropped_s = clocks.store_s()
    garbage = (Garbage(folder=old.baseline, dropped_s=dropped_s, names=(old.ref.name,)) for old in outlines)
    kept = tuple(each for each in draft.outlines if each not in outlines)
    return replace(draft, outlines=kept, garbage=(*draft.garbage, *garbage))


def _without_priority(draft: Draft, store_s: Callable[[], float]) -> Draft:
    """Drop the priority saves; whoever reads them holds a lease on them."""
    if not draft.priority:
        return draft
    dropped_s = store_s()
    garbage = (Garbage(folder=folder, dropped_s=dropped_s) for entry in draft.priority for folder in entry.folders)
    return replace(draft, priority=(), garbage=(*draft.garbage, *garbage))


def _refuse_dropped(entry: Entry, head: Head) -> None:
    if entry.info.id in head.inventory.condemned:
        raise SaveFailed(f"checkpoint {entry.info.id} was committed and has since been dropped")


def _require_folders(entry: Entry, head: Head) -> None:
    """Raise BaseDropped if a folder that a new checkpoint refers to belongs to none that the run still lists."""
    if entry.rounds:
        kept = {folder for each in head.entries for folder in each.folders}
        for folder in entry.rounds:
            if folder not in kept:
                raise BaseDropped(f"checkpoint {entry.info.id} refers to objects of {folder}, which was dropped: retry")


def _left_behind(entry: Entry, step: int) -> Entry:
    is_ahead = entry.info.step >= step and not entry.info.abandoned
    return _abandon(entry, suspect=False) if is_ahead else entry


def _same(head: Head, reason: str) -> Draft:
    catalog = head.catalog
    return Draft(
        reason=reason,
        term=catalog.term,
        head=catalog.head,
        entries=head.entries,
        garbage=head.garbage,
        options=catalog.options,
        outlines=catalog.outlines,
        priority=catalog.priority,
    )


def _abandon(entry: Entry, *, suspect: bool) -> Entry:
    doubt = Doubt.SUSPECT if suspect else entry.info.doubt
    return replace(entry, info=replace(entry.info, abandoned=True, doubt=doubt))


def _settled(entry: Entry, verdicts: Mapping[str, Doubt | None]) -> Entry:
    if entry.info.doubt is not Doubt.SUSPECT or entry.info.id not in verdicts:
        return entry
    return replace(entry, info=replace(entry.info, doubt=verdicts[entry.info.id]))


def _with_metrics(entry: Entry, metrics: Mapping[str, float]) -> Entry:
    return replace(entry, info=replace(entry.info, metrics={**entry.info.metrics, **metrics}))
