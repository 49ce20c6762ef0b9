"""What members of a job say to each other. Rows, gradients and places are opaque here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.cluster.core.members import Member, View


class Progress(NamedTuple):
    """How far a worker came: its last push, and the place in the data from which the next step starts."""

    pushed: int
    place: Any


BEGINNING = Progress(0, None)

# ---- worker to server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a stream: pushes go on after these, which were applied, or lost with a dead server.

    It is answered with what is applied here: more than that, where a predecessor of the worker had pushed more.
    ``stable`` is what every server has applied.
    """

    progress: Progress
    stable: Progress


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for rows."""

    number: int
    rows: Any


@dataclass(frozen=True, slots=True)
class Push:
    """A step's gradients for one server, the place from which the next step starts, and what all servers applied."""

    number: int
    gradients: Any
    place: Any
    stable: Progress

    @property
    def progress(self) -> Progress:
        """Once it is applied."""
        return Progress(self.number, self.place)


# ---- server to worker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a pull."""

    number: int
    values: Any


@dataclass(frozen=True, slots=True)
class Applied:
    """All pushes up to this one are applied."""

    number: int


# ---- controller to everyone ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewView:
    """Somebody was replaced. Whoever finds another in its own place ends."""

    view: View


@dataclass(frozen=True, slots=True)
class Load:
    """To a new server: load the newest rows saved of its shards, as of this view."""

    view: View


@dataclass(frozen=True, slots=True)
class Start:
    """To a new worker: go on from here."""

    view: View
    progress: Progress


@dataclass(frozen=True, slots=True)
class Pause:
    """To workers: stop at the end of a step, once everything pushed is applied."""

    save: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """To servers: copy what changed. How far each worker came goes with it."""

    save: int
    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True)
class GoOn:
    """To workers: the save is copied, or called off."""

    save: int


# ---- to the controller -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """From a new server: it answers from now on."""


@dataclass(frozen=True, slots=True)
class Standing:
    """From a server, once it takes no more from a worker that was replaced: what it applied of that worker's pushes.

    ``progress`` is None where the server itself is new and never heard from that worker. ``stable`` is what all
    servers have applied of it, as far as this one was told.
    """

    worker: int
    incarnation: int  # of the replacement
    progress: Progress | None
    stable: Progress


@dataclass(frozen=True, slots=True)
class Paused:
    """From a worker: nothing of its pushes is in flight."""

    save: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Copied:
    """From a server: its part of a save is copied."""

    save: int


@dataclass(frozen=True, slots=True)
class Broken:
    """From anyone: frames of this member are missing, so that nothing more it says can be believed."""

    member: Member


Message: TypeAlias = (
    Hello | Pull | Push | Rows | Applied | NewView | Load | Start | Pause | Snapshot | GoOn | Loaded | Standing | Paused
    | Copied | Broken
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Send:
    """An output of a state machine: a message on its way."""

    to: Member
    message: Message
