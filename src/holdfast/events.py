"""What happens to a training and to its run, as values: hooks receive them, and a report draws them.

A hook of the Checkpointer gets one of the first four. What a run remembers of them are its checkpoints, each the
``info`` of a ``SaveCommitted``, and the ``HistoryEvent`` that ``Run.history()`` lists. Times are in seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.types import CheckpointInfo, Kind


class Happening(Enum):
    """What a trainer did other than to save.

    Attributes:
        BEGAN: It began the run.
        TOOK_OVER: It started on a run that was there: after a failure, or to go on.
        WENT_BACK: It went back to a checkpoint that is not the newest.
        FENCED: It fenced off its agent, which hung and could not be killed.
        RECOVERED_PART: It brought back a part of the tables, while the rest went on.
    """

    BEGAN = "began"
    TOOK_OVER = "took over"
    WENT_BACK = "went back"
    FENCED = "fenced off its agent"
    RECOVERED_PART = "recovered a part"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A save was copied; the agent writes it while training goes on.

    Args:
        checkpoint: Its id, if it is committed.
        step: The step that it is of.
        term: Of the trainer.
        kind: What it holds; ``PRIORITY``: rows between two checkpoints.
        tag: The name that ``save()`` gave it.
        at_s: When it was taken.
        stall_s: How long the loop waited for it.
    """

    checkpoint: str
    step: int
    term: int
    kind: Kind
    tag: str | None
    at_s: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted:
    """A save is in the run, for good.

    Args:
        info: As the catalog lists it; of kind ``PRIORITY``: rows between two checkpoints.
        at_s: When the trainer learnt of it.
    """

    info: CheckpointInfo
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGivenUp:
    """A save was not committed. Training goes on, and the next save holds its rows.

    Args:
        checkpoint: The id that it would have had. None: it could not even be taken.
        step: The step that it was of.
        term: Of the trainer.
        kind: What it would have held. None: that was not decided yet.
        at_s: When it was given up.
        reason: Why.
        retry_s: No other save is taken for so long, unless it is asked for.
        last_commit_step: The last step that this trainer has committed.
    """

    checkpoint: str | None
    step: int
    term: int
    kind: Kind | None
    at_s: float
    reason: str
    retry_s: float
    last_commit_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A training was brought back, all of it or a part.

    Args:
        what: ``TOOK_OVER`` by ``resume()``, ``WENT_BACK`` by ``recover_fully()`` and ``resume(step)``,
            ``RECOVERED_PART`` by ``recover()``.
        step: The step that training stands at now.
        checkpoint_step: Of the checkpoint that it, or the oldest row that came back, is from.
        term: Of the trainer.
        at_s: When it was done.
        duration_s: How long it took.
        lost_share: The share of the tables that went back.
        pls: The portion of lost samples by now. None: it is not metered.
    """

    what: Happening
    step: int
    checkpoint_step: int
    term: int
    at_s: float
    duration_s: float
    lost_share: float
    pls: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """Something that happened to a run.

    Args:
        what: What happened.
        at_s: When, by the writer's clock.
        exact: Whether that is the moment itself. False: it happened no later.
        term: Of the trainer.
        writer: Who it was. None: not known any more.
        from_step: The step that training went on from. None: the beginning, or not known.
        idle_s: Since the last checkpoint that is known of an earlier term. None: there is none.
        abandoned: How many checkpoints were left behind.
    """

    what: Happening
    at_s: float
    exact: bool
    term: int
    writer: str | None
    from_step: int | None
    idle_s: float | None
    abandoned: int = 0


TrainingEvent = SnapshotTaken | SaveCommitted | SaveGivenUp | Recovery
