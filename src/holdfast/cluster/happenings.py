"""What happens to a job, as values: the live view shows them, and the report draws them. Times are since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.cluster.core.members import Member
from holdfast.policy.ladder import FULL as FULL
from holdfast.policy.ladder import PARITY as PARITY
from holdfast.policy.ladder import PARTIAL as PARTIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderChosen:
    """By which rungs this job makes up for servers that die: told before anybody is at work."""

    rungs: str  # in words, from the top: "parity (4 + 1) → partial → full"
    why: str  # what was decided, and by which figures
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Everyone is at work, for the first time in this job."""

    at_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A member ended, or was taken for dead."""

    member: Member
    how: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Another process has a dead member's place, and is at work."""

    member: Member
    by_spare: bool
    at_s: float
    took_s: float  # since the death was heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareFailed:
    """A server that waited for a place died, or could not be started; another is started, later each time it fails.

    Told once, however often that happens again.
    """

    spares: int  # that are left
    problem: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WentBack:
    """Everyone goes back to a checkpoint; an empty one is the beginning."""

    checkpoint: str
    lost_steps: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """Everyone is at work behind a checkpoint, with another number of workers."""

    workers: int
    before: int  # how many there were
    at_s: float
    took_s: float  # since it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeFailed:
    """The number of workers stays as it is: the save that comes first failed, or there is no room for more."""

    workers: int  # that were asked for
    problem: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A save was copied; workers waited from the request until they could go on."""

    save: int
    step: int
    pause_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A save is a checkpoint."""

    save: int
    checkpoint: str
    step: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """A save was called off; the training goes on."""

    save: int
    problem: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSamples:
    """A server's death set its rows back: by how many steps, and what all such deaths lost of the samples' effect."""

    member: Member  # who has the rows now
    steps: int  # of all workers, since the newest checkpoint; rows of a priority save lack fewer
    pls: float | None  # over the whole training; None: without a budget it is not metered
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A server that died is made up for: by which rung of the ladder, and what it cost.

    Told once the cost is known: after a partial recovery, when every worker has turned to the new server.
    """

    member: Member  # who has its place now
    rung: str  # PARITY, PARTIAL or FULL
    rows: int  # that came from parities
    saved_rows: int  # that came from a save, of those that parities could not give
    at_s: float  # when everyone was at work
    took_s: float  # until then, since the death was heard of
    lost_steps: int = 0  # that its rows lack, or, after FULL, that everyone takes again
    lost_samples: float | None = None  # of these steps; None: not known
    lost_pls: float | None = None  # what this recovery added to the portion of lost samples; None: not metered


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """Every row is protected by parity; again, if it was before."""

    records: int  # parities that were encoded for it
    at_s: float
    took_s: float  # since the job began, or since a death was heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The job is over, and everyone was told so."""

    problem: str  # empty where all is well
    at_s: float


Event: TypeAlias = (
    LadderChosen | Started | Died | Replaced | Recovered | Redundant | WentBack | LostSamples
    | SpareFailed | Resized | ResizeFailed | Paused | Committed | SaveFailed | Ended
)  # fmt: skip
