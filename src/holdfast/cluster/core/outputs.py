"""What a controller wants done, other than messages to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.progress import Progress


@dataclass(frozen=True, slots=True)
class Replace:
    """Start a process that is to be this member."""

    member: Member


@dataclass(frozen=True, slots=True)
class Join:
    """Start a process for a place in which nobody was."""

    member: Member


@dataclass(frozen=True, slots=True)
class Fence:
    """Whatever is left of this member must end."""

    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A save can be taken: decide on its kind, and call ``snapshot``. Reports are by worker, surveys by server."""

    save: int
    progress: Mapping[int, Progress]
    reports: Mapping[int, bytes]
    surveys: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Every server has copied its part of a save: commit it, then call ``committed``, or ``call_off`` if it fails."""

    save: int
    progress: Mapping[int, Progress]
    reports: Mapping[int, bytes]  # by server


@dataclass(frozen=True, slots=True)
class CalledOff:
    """A save will not be committed."""

    save: int
    problem: str  # empty where a death ended it


@dataclass(frozen=True, slots=True)
class PrioritySaved:
    """A server has copied its rows for a priority save, or could not."""

    server: Member
    save: int
    problem: str
    report: bytes


@dataclass(frozen=True, slots=True)
class Loss:
    """So many pushes of a worker are not in all rows that a new server loaded: what a partial recovery costs."""

    server: Member
    worker: int
    pushes: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A new server has all its rows, but for so many that came from a save, and saves may go on."""

    server: Member
    rows: int
    fallen: int


@dataclass(frozen=True, slots=True)
class Protected:
    """Every row is there, and in every parity; so many parities were encoded since it was last so."""

    stripes: int


@dataclass(frozen=True, slots=True)
class WentBack:
    """Everyone goes back to this checkpoint. What was copied after it must not be committed any more."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Resized:
    """Everyone begins anew at this checkpoint, behind which nothing was trained, with another number of workers."""

    checkpoint: int
    workers: int


@dataclass(frozen=True, slots=True)
class ResizeFailed:
    """The number of workers stays as it is: the save that a change of it waited for was called off."""

    workers: int  # that were wanted
    problem: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Everyone was told to end; ``problem`` is empty where all is well."""

    problem: str


Output: TypeAlias = (
    Send | Replace | Join | Fence | Ready | Saved | CalledOff | PrioritySaved
    | Loss | Restored | Protected | WentBack | Resized | ResizeFailed | Ended
)  # fmt: skip
