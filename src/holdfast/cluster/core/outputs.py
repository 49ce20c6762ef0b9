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
    """So many pushes of a worker are not in the rows that a new server loaded: what a partial recovery costs."""

    server: Member
    worker: int
    pushes: int


@dataclass(frozen=True, slots=True)
class WentBack:
    """Everyone goes back to this checkpoint. What was copied after it must not be committed any more."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Everyone was told to end; ``problem`` is empty where all is well."""

    problem: str


Output: TypeAlias = Send | Replace | Fence | Ready | Saved | CalledOff | PrioritySaved | Loss | WentBack | Ended
