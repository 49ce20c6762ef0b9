"""What happens to a training and to its run, as values: hooks receive them, and a report draws them.

A hook of the Checkpointer gets one of the first four. What a run remembers of them are its checkpoints, each the
``info`` of a ``SaveCommitted``, and the ``HistoryEvent`` that ``Run.history()`` lists. Times are in seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.types import CheckpointInfo, Kind


class Happening(Enum):
    """What a trainer did other than to save."""

    BEGAN = "began"
    TOOK_OVER = "took over"  # a trainer started on a run that was there: after a failure, or to go on
    WENT_BACK = "went back"  # to a checkpoint that is not the newest
    FENCED = "fenced off its agent"  # which hung and could not be killed
    RECOVERED_PART = "recovered a part"  # of the tables, while the rest went on


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A save was copied; the agent writes it while training goes on."""

    checkpoint: str  # its id, if it is committed
    step: int
    term: int
    kind: Kind  # PRIORITY: rows between two checkpoints
    tag: str | None
    at_s: float
    stall_s: float  # how long the loop waited for it


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted:
    """A save is in the run, for good."""

    info: CheckpointInfo  # as the catalog lists it; of kind PRIORITY: rows between two checkpoints
    at_s: float  # when the trainer learnt of it


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGivenUp:
    """A save was not committed. Training goes on, and the next save holds its rows."""

    checkpoint: str | None  # None: it could not even be taken
    step: int
    term: int
    kind: Kind | None  # None: it was not decided yet
    at_s: float
    reason: str
    retry_s: float  # no other save is taken for so long, unless it is asked for
    last_commit_step: int | None  # the last step that this trainer has committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A training was brought back, all of it or a part."""

    what: Happening  # TOOK_OVER by resume(), WENT_BACK by recover_fully() and resume(step), RECOVERED_PART by recover()
    step: int  # at which training stands now
    checkpoint_step: int  # of the checkpoint that it, or the oldest row that came back, is from
    term: int
    at_s: float
    duration_s: float
    lost_share: float  # of the tables, that went back
    pls: float | None  # the portion of lost samples by now; None where it is not metered


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """Something that happened to a run. ``at_s`` is by the writer's clock; ``exact``: it is not merely the latest."""

    what: Happening
    at_s: float
    exact: bool
    term: int
    writer: str | None  # None: not known any more
    from_step: int | None  # the step that training went on from; None: the beginning, or not known
    idle_s: float | None  # since the last checkpoint that is known of an earlier term; None: there is none
    abandoned: int = 0  # checkpoints that were left


TrainingEvent = SnapshotTaken | SaveCommitted | SaveGivenUp | Recovery
