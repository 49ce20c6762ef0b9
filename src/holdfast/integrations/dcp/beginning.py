"""How a save begins, on rank 0: it takes the run's term, looks at the last checkpoint, and publishes the intent."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch.distributed.checkpoint.planner import SavePlan, WriteItemType

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.takeover import await_writers, claim
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.errors import ConfigurationError, DamagedData, TakenOver
from holdfast.format.catalog import Entry, Intent, checkpoint_id, folder_of
from holdfast.integrations.dcp.saved import DcpCheckpoint
from holdfast.integrations.dcp.stored import Key, StoredPiece, StoredSection, key_of
from holdfast.policy import Overlap
from holdfast.runtime import Runtime
from holdfast.storage import Store
from holdfast.types import Kind

logger = logging.getLogger("holdfast")

_LEAST_ALIVE = 0.5  # of a folder's bytes, for sections in it to be referred to again


def own_run(store: Store, chain: Chain, job: str, *, patience_s: float, runtime: Runtime) -> Head:
    """The head of the run, which belongs to this job from its first save on; raises TakenOver if it no longer does.

    A run tells who took it over, so all Writers of a job, in whatever process they are, share one term.
    """
    head = chain.head(skip_damaged=True)
    own = [event.term for event in head.catalog.events if event.writer == job] if head else []
    if head is None or not own:
        await_writers(store, timeout_s=patience_s, runtime=runtime)
        return claim(chain)
    if own[-1] != head.catalog.term:
        raise TakenOver(
            f"another job ({head.catalog.writer}) took over {store.url}: its term is {head.catalog.term}, ours was "
            f"{own[-1]}. Nothing was damaged, but this job can no longer commit: stop it, or give it its own URL"
        )
    return head


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The last checkpoint: what of it may be referred to, and the bytes of all sections in each folder."""

    pieces: Mapping[Key, StoredPiece]
    folders: Mapping[str, int]

    def among(self, plan: SavePlan) -> dict[Key, StoredPiece]:
        """Those that a rank is about to store again."""
        keys = (key_of(item.index) for item in plan.items if item.type != WriteItemType.BYTE_IO)
        return {key: self.pieces[key] for key in keys if key in self.pieces}


NOTHING = Earlier(pieces={}, folders={})


def last_save(store: Store, head: Head, *, runtime: Runtime) -> Earlier:
    """What the run's last checkpoint holds; nothing if it is the first, or cannot be read."""
    entry = head.by_id.get(head.catalog.head or "")
    if entry is None:
        return NOTHING
    try:
        found = DcpCheckpoint.open(Fetcher(store, runtime=runtime), entry)
    except DamagedData as error:
        logger.warning("the last checkpoint cannot be read (%s): everything is written anew", error)
        return NOTHING
    if found is None:
        raise ConfigurationError(
            f"{store.url} holds checkpoints of a Checkpointer or a Cluster, which could not resume after one of DCP: "
            "give dcp.save its own URL"
        )
    alive: dict[str, int] = defaultdict(int)
    for section in _sections(found.pieces.values()):
        alive[folder_of(section.bundle.name)] += section.place.length
    folders = {**found.state.folders, entry.info.id: alive[entry.info.id]}
    return Earlier(pieces=_worth_keeping(found.pieces, alive, folders), folders=folders)


def _worth_keeping(
    pieces: Mapping[Key, StoredPiece], alive: Mapping[str, int], folders: Mapping[str, int]
) -> Mapping[Key, StoredPiece]:
    """Without sections in folders that are mostly unused by now: written anew, they let the folder go."""
    kept = {folder for folder, size_bytes in alive.items() if size_bytes >= _LEAST_ALIVE * folders.get(folder, 0)}
    if len(kept) == len(alive):
        return pieces
    return {
        key: StoredPiece(spec=piece.spec, sections=tuple(s for s in piece.sections if folder_of(s.bundle.name) in kept))
        for key, piece in pieces.items()
    }


def _sections(pieces: Iterable[StoredPiece]) -> Iterator[StoredSection]:
    return (section for piece in pieces for section in piece.sections)


def make_intent(head: Head, step: int, *, tag: str | None, metrics: Mapping[str, float], runtime: Runtime) -> Intent:
    """The save of a step. Training came from the last checkpoint before that."""
    term = head.catalog.term
    return Intent(
        checkpoint=checkpoint_id(step, term, runtime.token()),
        step=step,
        term=term,
        kind=Kind.FULL,
        parent=_parent(head.entries, step),
        base=None,
        world=1,
        created_s=runtime.wall_s(),
        overlap=Overlap.WAIT.value,
        tag=tag,
        metrics=metrics,
    )


def _parent(entries: Iterable[Entry], step: int) -> str | None:
    live = [entry.info for entry in entries if not entry.info.abandoned and entry.info.step < step]
    return live[-1].id if live else None
