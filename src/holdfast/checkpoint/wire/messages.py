"""Messages between a trainer and its agent: typed values as length-prefixed JSON over a socket pair."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from holdfast.checkpoint.wire.frame_layout import Recorded
from holdfast.checkpoint.wire.readiness import is_writable, wait_readable
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.format.state_pieces import Piece

STATE = -1  # the table index of a frame chunk that holds pieces of state tensors
_LENGTH = struct.Struct("<Q")
_PATIENCE_S = 0.5


class ChannelClosed(Exception):
    """The other side is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Trainer to agent, first of all."""

    url: str
    options: dict[str, str] | None
    rank: int
    world: int
    term: int
    retention: dict[str, Any]
    grace_s: float
    reserve_bytes: int
    uploads: int
    retry_s: float
    part_timeout_s: float
    lease_s: float
    niceness: int
    alone: bool = True  # no agent that served this rank before can be at work any more
    grid: dict[str, Any] | None = None  # how to rearrange increments; None: not at all
    baseline_in_memory: bool = True  # where rows are stored as differences
    encodes: bool = False  # whether rows will have to be encoded
    starting: str | None = None  # the lease that its trainer holds for it until it is up
    peers: list[tuple[int, int]] = field(default_factory=list)  # other ranks of this machine, and pidfds of them


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSlice:
    """A table in a snapshot: its stored shape, the rows this writer owns, and whether all of them are in it.

    ``codecs`` are those of its columns; None: as they are. With ``difference`` weights that can be are stored, with
    that codec, as differences from their baseline. Those that come as records are differences already, from the
    checkpoint ``made_from``.
    """

    spec: dict[str, Any]
    start: int
    stop: int
    whole: bool
    codecs: dict[str, dict[str, Any]] | None = None
    difference: dict[str, Any] | None = None
    made_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A snapshot starts; frames follow."""

    intent: dict[str, Any]
    tables: list[TableSlice]
    tensors: list[tuple[str, list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandBack:
    """What follows can wait for so long: other ranks on this machine may still copy, and need the cores."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChunk:
    """A chunk in a frame: rows of the table with that index, or pieces of state tensors (table -1).

    ``recorded`` are those of its columns that are encoded already (``frame_layout``).
    """

    table: int
    offset: int
    length: int
    rows: int = 0
    first: int = 0
    last: int = 0
    ids: str | None = None
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    recorded: dict[str, Sequence[int]] = field(default_factory=dict)

    def state_pieces(self) -> tuple[Piece, ...]:
        """Its pieces of state tensors."""
        return tuple(Piece(tensor=t, start=s, length=n) for t, s, n in self.pieces)

    def recorded_columns(self) -> dict[str, Recorded]:
        """What its columns take that are encoded already, by name."""
        return {name: Recorded(*each) for name, each in self.recorded.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFilled:
    """A frame is complete and belongs to the agent until it is freed."""

    frame: int
    used: int
    chunks: list[FrameChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The snapshot is complete: from here the agent commits it, whatever becomes of the trainer."""

    full_bytes: int
    stall_s: float | None = None  # how long training waited for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Give up the snapshot in progress if its commit has not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotate:
    """Metrics of a committed checkpoint that arrived late."""

    checkpoint: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Find out whether a checkpoint was committed."""

    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrange:
    """Rearrange all that is due, then say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Answer, as a sign of life."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseTerm:
    """Raise the run's term: an agent that cannot be killed is to commit nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Finish what is sealed, then exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """Agent to trainer: the frame can be used again."""

    frame: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The checkpoint is the head of the run."""

    entry: dict[str, Any]
    state: list[PieceDigest] = field(default_factory=list)  # what this writer stored of the state; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The checkpoint is not committed; ``unknown``: the store did not say."""

    checkpoint: str
    error: str
    message: str
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GridNews:
    """What rearranging has done so far; ``settled``: nothing more is due, as was asked for."""

    stats: dict[str, Any]
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer to the ping of that number; what the agent waits for, and for how long already, if for anything."""

    number: int
    awaits: str = ""
    awaits_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The run's term is this one now; None: it could not be raised, and why."""

    term: int | None
    problem: str = ""
    taken_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user; the run continues."""

    message: str


FromTrainer = (
    Configure
    | StandBack
    | Begin
    | FrameFilled
    | Seal
    | Cancel
    | Annotate
    | Resolve
    | Arrange
    | Ping
    | RaiseTerm
    | Close
)
FromAgent = Freed | Committed | Failed | GridNews | Pong | Raised | Notice
Message = FromTrainer | FromAgent
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in (*get_args(FromTrainer), *get_args(FromAgent))}


class Channel:
    """One end of the conversation. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._received = bytearray()

    def fileno(self) -> int:
        """The socket's descriptor, for whoever waits for several."""
        return self._socket.fileno()

    def send(self, *messages: Message, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send, or raise ChannelClosed. Non-finite metrics travel as Python's JSON dialect, which both ends speak.

        While there is no more room, because the other side does not read, ``meanwhile`` is called now and then. If it
        raises, part of a message may be gone: the conversation is over.
        """
        left = memoryview(b"".join(map(_packed, messages)))
        with self._sending:
            while left:
                try:
                    left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if not is_writable(self._socket, _PATIENCE_S):
                        meanwhile()
                except OSError as error:
                    raise ChannelClosed(str(error)) from error

    @property
    def has_room(self) -> bool:
        """Whether a short message can be sent without blocking."""
        return is_writable(self._socket)

    def receive(self, timeout_s: float | None = 0.0) -> Message | None:
        """The next message; None if none came in time. Raises ChannelClosed when the other side is gone."""
        while (message := self._take()) is None:
            if not wait_readable([self._socket], timeout_s):
                return None
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the other side closed the connection")
            self._received += data
        return message

    def hang_up(self) -> None:
        """End the conversation for both sides, from any thread; what was sent before can still be received."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back; for the thread that receives."""
        self._socket.close()

    def _take(self) -> Message | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if len(self._received) < _LENGTH.size + length:
            return None
        name, values = json.loads(self._received[_LENGTH.size : _LENGTH.size + length])
        del self._received[: _LENGTH.size + length]
        return _build(name, values)


_NAMES: dict[type, tuple[str, ...]] = {}  # of fields, which ``fields`` would gather anew for each message


def _packed(message: Message) -> bytes:
    body = json.dumps([type(message).__name__, message], default=_fields).encode()
    return _LENGTH.pack(len(body)) + body


def _fields(value: Any) -> dict[str, Any]:
    """A message, or a value in one, as JSON writes it; ``dataclasses.asdict`` would copy everything first."""
    names = _NAMES.get(type(value))
    if names is None:
        names = _NAMES[type(value)] = tuple(each.name for each in fields(value))
    return {name: getattr(value, name) for name in names}


def _build(name: str, values: dict[str, Any]) -> Message:
    if name == "Begin":
        values["tables"] = [TableSlice(**table) for table in values["tables"]]
    elif name == "FrameFilled":
        values["chunks"] = [FrameChunk(**chunk) for chunk in values["chunks"]]
    elif name == "Committed":
        values["state"] = [PieceDigest(*each) for each in values["state"]]
    message: Message = _TYPES[name](**values)
    return message
