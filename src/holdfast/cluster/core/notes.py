"""What processes tell each other beside the protocol: nothing that it decides depends on these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Up:
    """To the controller: this process runs, and listens."""


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """To a server, before it is told to load: what a save became in the run. An empty name: what the job began with."""

    save: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Decide:
    """To server 0, which leads commits: what shall this save hold? Surveys are by server."""

    save: int
    step: int
    surveys: tuple[bytes, ...]
    priority: bool = False  # of rows between two checkpoints
    force: bool = False  # wait for the last save


@dataclass(frozen=True, slots=True)
class DensePart:
    """To server 0, which saves the dense parameters of all: those of another server, as of a save."""

    save: int
    dense: Any


@dataclass(frozen=True, slots=True)
class Decided:
    """From server 0: the intent that all servers follow, or why there is none. To servers: that of a priority save."""

    save: int
    intent: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """From server 0: a save was committed, or why it was not."""

    save: int
    checkpoint: str
    problem: str


@dataclass(frozen=True, slots=True)
class Stats:
    """To the controller: how it goes, as JSON."""

    report: bytes


@dataclass(frozen=True, slots=True)
class Account:
    """To server 0: what goes with its next checkpoints, the meter of lost samples and metrics, as JSON."""

    report: bytes


Note: TypeAlias = Up | NamedCheckpoint | Decide | DensePart | Decided | Outcome | Stats | Account
