"""What members of a job say to each other. Rows, gradients, dense copies and places are opaque here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.notes import Note
from holdfast.cluster.core.parity_messages import (
    FallBack,
    Hurry,
    OutOfReach,
    ParityMessage,
    Rebuild,
    Rebuilt,
    Redundant,
)
from holdfast.cluster.core.progress import Progress

# ---- worker to server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message on a stream: pushes go on after these, which were applied, or lost with a dead server.

    The answer says what is applied here, which is more where a predecessor of the worker had pushed more.
    """

    progress: Progress
    stable: Progress  # what every server has applied
    dense: Any = None  # arrays: the worker's copy of the dense part of a server that died


@dataclass(frozen=True, slots=True)
class Pull:
    """Asks for rows. In synchronous training they are those after exactly ``step`` steps."""

    number: int
    rows: Any  # arrays
    step: int


@dataclass(frozen=True, slots=True)
class Push:
    """A step's gradients for one server, the place from which the next step starts, and what all servers applied."""

    number: int
    gradients: Any  # arrays
    place: Any
    stable: Progress

    @property
    def progress(self) -> Progress:
        """Once it is applied."""
        return Progress(self.number, self.place)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Synchronous training: steps need nothing more from this worker, whose data have ended."""


# ---- server to worker, server to server ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a pull."""

    number: int
    values: Any  # arrays


@dataclass(frozen=True, slots=True)
class Applied:
    """All pushes up to this one are applied."""

    number: int


@dataclass(frozen=True, slots=True)
class Held:
    """Synchronous training, to the other servers: all of this step is here, and will not be given up."""

    step: int


# ---- from the controller, or its heir --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewView:
    """Somebody was replaced. Whoever finds another in its own place ends."""

    view: View


@dataclass(frozen=True, slots=True)
class GoBack:
    """To a process: go on as this member, its own next incarnation, and forget everything."""

    member: Member


@dataclass(frozen=True, slots=True)
class Load:
    """To a new server: load a checkpoint, from which workers go on as this says; None: the newest rows saved."""

    view: View
    checkpoint: int | None
    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True)
class Start:
    """To a new worker: go on from here."""

    view: View
    progress: Progress


@dataclass(frozen=True, slots=True)
class Pause:
    """To workers: stop when everything pushed is applied; in synchronous training, once this step is pushed."""

    save: int
    view: int  # whoever has another does not answer: an heir may have missed one, or a member may
    step: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """To servers: a save is coming; say what there is to save."""

    save: int
    view: int  # as for a pause


@dataclass(frozen=True, slots=True)
class Snapshot:
    """To servers: copy what changed. How far each worker came goes with it."""

    save: int
    progress: Mapping[int, Progress]
    intent: bytes


@dataclass(frozen=True, slots=True)
class CallOff:
    """To servers: this save will not be committed; what was copied for it counts as not saved."""

    save: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """To workers: the save is copied, or called off."""

    save: int


@dataclass(frozen=True, slots=True)
class SavePriority:
    """To servers: copy the rows that a failure would set back furthest, with what they hold. Nobody pauses."""

    save: int


@dataclass(frozen=True, slots=True)
class End:
    """To everyone: the job is over."""


# ---- to the controller, or its heir ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """From a new server: it answers from now on."""


@dataclass(frozen=True, slots=True)
class Standing:
    """From a server, once it takes no more from a worker that was replaced: what it applied of that worker's pushes.

    In synchronous training: what it applied, or promised.
    """

    worker: int
    incarnation: int  # of the replacement
    progress: Progress | None  # None: the server is new as well, and never heard from that worker
    stable: Progress  # what all servers have applied of it, as far as this one was told


@dataclass(frozen=True, slots=True)
class Lost:
    """From a new server: so many of a worker's pushes are not in all rows that came from a save, and do not come again.

    They count from the newest checkpoint, as priority saves hold but a few rows. It may be none.
    """

    worker: int
    pushes: int


@dataclass(frozen=True, slots=True)
class Paused:
    """From a worker: nothing of its pushes is in flight (synchronous training: once the other workers pushed too)."""

    save: int
    progress: Progress
    report: bytes


@dataclass(frozen=True, slots=True)
class Surveyed:
    """From a server: what a save would have to copy."""

    save: int
    report: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    """From a server: its part of a save is copied; ``problem`` says why it is not, and is empty where it is."""

    save: int
    problem: str = ""
    report: bytes = b""


@dataclass(frozen=True, slots=True)
class Finished:
    """From a worker: its data have ended."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Synchronous training, from a new member: nothing is needed any more that only its predecessor knew."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From anyone: the training cannot go on, such as where the user's code raised."""

    problem: str


@dataclass(frozen=True, slots=True)
class Broken:
    """From anyone: frames of this member are missing, so that nothing more it says can be believed.

    It is the end of that member, unless it is the controller: then whoever says so may have missed an order.
    """

    member: Member

    def to_replace(self, receiver: Member) -> Member:
        """Who cannot go on. The receiver is the one that misses frames."""
        return receiver if self.member.role is Role.CONTROLLER else self.member


Message: TypeAlias = (
    Hello | Pull | Push | Exhausted | Rows | Applied | Held | ParityMessage
    | NewView | GoBack | Load | Rebuild | FallBack | Hurry | Start
    | Pause | Survey | Snapshot | CallOff | GoOn | SavePriority | End
    | Loaded | Lost | OutOfReach | Rebuilt | Redundant | Standing
    | Paused | Surveyed | Copied | Finished | Settled | Failed | Broken | Note
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Send:
    """An output of a state machine: a message on its way."""

    to: Member
    message: Message
