"""Every message as ZeroMQ frames, and back: a header, then one frame for each large array."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from holdfast.cluster.core import messages as core
from holdfast.cluster.core import notes
from holdfast.cluster.core import parity_messages as parity
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.wire.address import Address, Peer
from holdfast.cluster.wire.fields import record
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.sheet import MOST_FRAME_BYTES, Array, Cursor, Sheet
from holdfast.errors import ConfigurationError

VERSION = 5  # of the format: peers of another version are refused, because a job runs one release
MAGIC = b"HF"
HEADER = struct.Struct("<2sBBQ")  # magic, version, type, the frame's number in its stream
ROUTE = struct.Struct("<BBxxIIII")  # sender and receiver: roles, then index and incarnation of each
HEADER_BYTES = HEADER.size + ROUTE.size
_ROLES = list(Role)
_ROLE_CODES = {role: code for code, role in enumerate(_ROLES)}


@dataclass(frozen=True, slots=True)
class Opening:
    """The first frame of every stream: where its sender can be reached."""

    address: Address


@dataclass(frozen=True, slots=True)
class Introduction:
    """Where others can be reached."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Pulse:
    """Nothing but its number, now and then on every stream: it shows a gap that no other message would."""


@dataclass(frozen=True, slots=True)
class Beat:
    """From a member to the controller: it lives."""


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """From the controller to a member: it lives too, and whether it counts on that member."""

    is_counted_on: bool


@dataclass(frozen=True, slots=True)
class OrphanBeat:
    """From a member that has lost the controller: should that live after all, it must not count on this one."""


Framed: TypeAlias = core.Message | Opening | Introduction | Pulse | Beat | BeatAnswer | OrphanBeat

# By code, which is part of the format: codes are never given to another type. A new message is a line here.
TYPES: dict[int, type] = {
    1: core.Hello,
    2: core.Pull,
    3: core.Push,
    4: core.Rows,
    5: core.Applied,
    6: core.NewView,
    7: core.Load,
    8: core.Start,
    9: core.Pause,
    10: core.Snapshot,
    11: core.GoOn,
    12: core.Loaded,
    13: core.Standing,
    14: core.Paused,
    15: core.Copied,
    16: core.Broken,
    17: core.Exhausted,
    18: core.Held,
    19: core.GoBack,
    20: core.Survey,
    21: core.Surveyed,
    22: core.CallOff,
    23: core.SavePriority,
    24: core.End,
    25: core.Finished,
    26: core.Failed,
    27: core.Lost,
    28: parity.Difference,
    29: parity.Absorbed,
    30: parity.Want,
    31: parity.Given,
    32: parity.Refused,
    33: parity.Fell,
    34: parity.Ask,
    35: parity.Values,
    36: parity.Rebuild,
    37: parity.FallBack,
    38: parity.OutOfReach,
    39: parity.Rebuilt,
    40: parity.Redundant,
    41: core.Settled,
    42: parity.Reconcile,
    43: parity.Agreed,
    44: parity.Dropped,
    45: parity.Forget,
    46: parity.Hurry,
    128: notes.Up,
    129: notes.NamedCheckpoint,
    130: notes.Decide,
    131: notes.DensePart,
    132: notes.Decided,
    133: notes.Outcome,
    134: notes.Stats,
    135: notes.Account,
    240: Opening,
    241: Introduction,
    242: Beat,
    243: BeatAnswer,
    244: Pulse,
    245: OrphanBeat,
}
_WRITERS = {kind: (code, record(kind).write) for code, kind in TYPES.items()}
_READERS = {code: record(kind).read for code, kind in TYPES.items()}


@dataclass(frozen=True, slots=True)
class Route:
    """From whom to whom a stream leads."""

    sender: Member
    receiver: Member

    def to_bytes(self) -> bytes:
        """As it stands in each header of the stream."""
        sender, receiver = self.sender, self.receiver
        roles = _ROLE_CODES[sender.role], _ROLE_CODES[receiver.role]
        return ROUTE.pack(*roles, sender.index, sender.incarnation, receiver.index, receiver.incarnation)

    @classmethod
    def from_bytes(cls, data: bytes) -> Route:
        """Or ``MalformedFrame``."""
        role, to_role, index, incarnation, to_index, to_incarnation = ROUTE.unpack(data)
        if max(role, to_role) >= len(_ROLES) or not (incarnation and to_incarnation):
            raise MalformedFrame(
                f"no stream leads from role {role} ({incarnation}) to role {to_role} ({to_incarnation})"
            )
        route = cls(Member(_ROLES[role], index, incarnation), Member(_ROLES[to_role], to_index, to_incarnation))
        if route.to_bytes() != data:
            raise MalformedFrame("bytes that mean nothing are not zero")
        return route


class Header(NamedTuple):
    """What stands before the fields of a message."""

    code: int
    number: int
    route: bytes


def read_header(head: bytes | bytearray) -> Header:
    """Of a first frame."""
    if len(head) < HEADER_BYTES:
        raise MalformedFrame(f"a header has at least {HEADER_BYTES} bytes, and this one {len(head)}")
    magic, version, code, number = HEADER.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise MalformedFrame(f"{magic!r} of version {version} is not {MAGIC!r} of version {VERSION}")
    if code not in _READERS:
        raise MalformedFrame(f"no message has the type {code}")
    return Header(code, number, bytes(head[HEADER.size : HEADER_BYTES]))


def read_message(code: int, head: bytearray, frames: Sequence[memoryview]) -> Framed:
    """The message behind a header that was read."""
    cursor = Cursor(head, frames, HEADER_BYTES)
    message: Framed = _READERS[code](cursor)
    cursor.end()
    return message


def write(route: bytes, number: int, message: Framed) -> tuple[bytearray, list[Array]]:
    """The header, and an array for each frame after it. The arrays must not change any more."""
    code, fields = _WRITERS[type(message)]
    sheet = Sheet(HEADER.pack(MAGIC, VERSION, code, number) + route)
    fields(sheet, message)
    if len(sheet.head) > MOST_FRAME_BYTES:
        raise ConfigurationError(
            f"a {type(message).__name__} has {len(sheet.head)} bytes beside its arrays, more than {MOST_FRAME_BYTES}; "
            "let the data loader keep less in its position"
        )
    return sheet.head, sheet.frames
