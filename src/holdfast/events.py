"""What happens to a training and to its run, as values: hooks receive them, and reports draw them.

A hook of the Checkpointer receives one of the first four. A run keeps its checkpoints, each the ``info`` of a
``SaveCommitted``, and the events that ``Run.history()`` lists. Times are in seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.types import CheckpointInfo, Kind


class Happening(Enum):
    """What a trainer did, other than saving.

    Attributes:
        BEGAN: It started the run.
        TOOK_OVER: It started on an existing run: after a failure, or to continue.
        WENT_BACK: It went back to a checkpoint that is not the newest.
        FENCED: It fenced off its agent, which hung and could not be killed.
        RECOVERED_PART: It restored a part of the tables, while the rest carried on.
    """

    BEGAN = "began"
    TOOK_OVER = "took over"
    WENT_BACK = "went back"
    FENCED = "fenced off its agent"
    RECOVERED_PART = "recovered a part"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A save was copied; the agent writes it while training continues.

    Args:
        checkpoint: Its id, should it be committed.
        step: The step it was taken at.
        term: Of the trainer.
        kind: What it holds; ``PRIORITY``: rows between two checkpoints.
        tag: The name that ``save()`` gave it.
        at_s: When it was taken.
        stall_s: How long the loop waited for the copy.
        device_bytes: What it took of the buffers of GPUs, which it leaves while training continues, without what is
            read in slices later. 0: the loop waited for all of it.
    """

    checkpoint: str
    step: int
    term: int
    kind: Kind
    tag: str | None
    at_s: float
    stall_s: float
    device_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted:
    """A save is in the run, for good.

    Args:
        info: As the catalog lists it; of kind ``PRIORITY``: rows between two checkpoints.
        at_s: When the trainer learnt about it.
    """

    info: CheckpointInfo
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGivenUp:
    """A save was not committed. Training continues, and the next save includes its rows.

    Args:
        checkpoint: The id it would have had. None: the snapshot itself failed.
        step: The step it was taken at.
        term: Of the trainer.
        kind: What it would have held. None: not decided yet.
        at_s: When it was given up.
        reason: Why.
        retry_s: No other save is taken for this long, unless requested.
        last_commit_step: The last step this trainer committed.
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
    """A training was restored, in full or in part.

    Args:
        what: ``TOOK_OVER`` by ``resume()``, ``WENT_BACK`` by ``recover_fully()`` and ``resume(step)``,
            ``RECOVERED_PART`` by ``recover()``.
        step: The current step of the training.
        checkpoint_step: The step of the checkpoint that it, or its oldest restored row, is from.
        term: Of the trainer.
        at_s: When it was done.
        duration_s: How long it took.
        lost_share: The share of the tables that went back.
        pls: The portion of lost samples so far. None: not metered.
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
        exact: Whether that is the exact time. False: it happened no later.
        term: Of the trainer.
        writer: Which process it was. None: no longer known.
        from_step: The step that training continued from. None: the beginning, or unknown.
        idle_s: Time since the last known checkpoint of an earlier term. None: there is none.
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
