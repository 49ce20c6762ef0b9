"""What happened to a run: when trainers started it, took it over, and went back.

The catalog records the latest such events. Older ones are inferred from the terms in the checkpoints: a checkpoint
whose term differs from the previous one's was written by another trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.checkpoint.commit.chain import Head
from holdfast.events import Happening, HistoryEvent
from holdfast.format.catalog import CommitEvent
from holdfast.types import CheckpointInfo

_REASONS = {  # catalogs'
    "create": Happening.BEGAN,
    "take over": Happening.TOOK_OVER,
    "go back": Happening.WENT_BACK,
    "fence": Happening.FENCED,
}


def read_history(head: Head) -> tuple[HistoryEvent, ...]:
    """Everything that is known, oldest first."""
    infos = [entry.info for entry in head.entries]
    told = [_told(event) for event in head.catalog.events]
    terms = {event.term for event in told if event.what is not Happening.WENT_BACK}
    inferred = [_inferred(infos, term) for term in sorted({info.term for info in infos} - terms)]
    return tuple(_with_idle_time(event, infos) for event in sorted([*told, *inferred], key=lambda event: event.at_s))


def _told(event: CommitEvent) -> HistoryEvent:
    return HistoryEvent(
        what=_REASONS[event.reason],
        at_s=event.at_s,
        exact=True,
        term=event.term,
        writer=event.writer,
        from_step=event.step,
        idle_s=None,
        abandoned=event.abandoned,
    )


def _inferred(infos: Sequence[CheckpointInfo], term: int) -> HistoryEvent:
    """That of a term that the catalog does not tell of any more."""
    first = next(info for info in infos if info.term == term)
    what = Happening.BEGAN if term == 1 else Happening.TOOK_OVER
    steps = {info.id: info.step for info in infos}
    return HistoryEvent(
        what=what,
        at_s=first.created_s,
        exact=False,
        term=term,
        writer=None,
        from_step=steps.get(first.parent or ""),
        idle_s=None,
    )


def _with_idle_time(event: HistoryEvent, infos: Sequence[CheckpointInfo]) -> HistoryEvent:
    """Adds the time since the previous trainer's last save."""
    earlier = [info.created_s for info in infos if info.term < event.term]
    if event.what is not Happening.TOOK_OVER or not earlier:
        return event
    return replace(event, idle_s=max(0.0, event.at_s - max(earlier)))
