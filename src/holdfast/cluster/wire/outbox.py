"""The sending ends of streams: one connection for each member that something was sent to."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import zmq

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.streams import Outgoing
from holdfast.cluster.wire.address import Address, Peer
from holdfast.cluster.wire.frames import Framed, Introduction, Opening, Pulse, Route, write
from holdfast.cluster.wire.inbox import Dropped
from holdfast.cluster.wire.sockets import Socket, Sockets

logger = logging.getLogger("holdfast")

# As plain numbers: combining flags takes as long as sending.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(slots=True)
class _Line:
    """A stream to one member."""

    socket: Socket
    route: bytes
    numbers: Outgoing = field(default_factory=Outgoing)
    is_refused: bool = False

    def send(self, message: Framed) -> bool:
        """False where there is no way to the peer any more: it refused the connection."""
        head, arrays = write(self.route, self.numbers.number(), message)
        left = len(arrays)
        try:
            self.socket.send(head, _MORE if left else _LAST)
            for array in arrays:
                left -= 1
                self.socket.send(array.data, _MORE if left else _LAST, copy=False)
        except zmq.Again:
            return False
        return True


class Outbox:
    """Sends to members by name. What is for a member whose address is not known yet waits until it is.

    Args:
        member: Who sends.
        address: Where it can be reached; the first frame of each stream says so.
        sockets: What connects.
        dropped: Counts what could not be sent.
    """

    def __init__(self, member: Member, address: Address, sockets: Sockets, dropped: Dropped) -> None:
        self._member = member
        self._own = address
        self._sockets = sockets
        self._dropped = dropped
        self._lines: dict[Member, _Line] = {}
        self._addresses: dict[Member, Address] = {}
        self._held: dict[Member, list[Framed]] = {}
        self._gone: dict[tuple[Role, int], int] = {}  # by place, the last incarnation that was disconnected

    @property
    def addresses(self) -> dict[Member, Address]:
        """Of all members that are known and not gone."""
        return dict(self._addresses)

    def learn(self, peer: Peer) -> None:
        """Where a member is. It has one address for life, so that only the first counts."""
        member = peer.member
        if self._is_gone(member) or member in self._addresses:
            return
        self._addresses[member] = peer.address
        for message in self._held.pop(member, ()):
            self.send(member, message)

    def send(self, member: Member, message: Framed) -> None:
        """Never blocks. The arrays of the message are given away: they must not change any more."""
        line = self._lines.get(member)
        if line is None and (line := self._connected(member)) is None:
            if self._is_gone(member):
                self._dropped.unsent += 1
            else:
                self._held.setdefault(member, []).append(message)
            return
        if not line.send(message):
            self._dropped.unsent += 1
            if not line.is_refused:
                line.is_refused = True
                logger.warning("%s does not let %s connect: it belongs to another job, or died", member, self._member)

    def connect(self, peer: Peer) -> None:
        """Learn where a member is, and tell it at once where this one is."""
        self.learn(peer)
        self.reach(peer.member)

    def reach(self, member: Member) -> None:
        """Connect to a member before there is anything to say, if its address is known."""
        if member not in self._lines:
            self._connected(member)

    def pulse(self) -> None:
        """Give every stream a number, so that whoever misses an earlier one notices."""
        for line in self._lines.values():
            line.send(Pulse())

    def introduce(self, to: Member, members: tuple[Member, ...]) -> None:
        """Tell a member the addresses of others, before whatever is sent to it next."""
        known = tuple(Peer(each, self._addresses[each]) for each in members if each in self._addresses)
        if known:
            self.send(to, Introduction(known))

    def drop(self, member: Member) -> None:
        """It is dead, or somebody else: what is on its way to it, or to earlier ones in its place, is thrown away."""
        place = (member.role, member.index)
        self._gone[place] = max(self._gone.get(place, 0), member.incarnation)
        for each in {*self._lines, *self._addresses, *self._held}:
            if (each.role, each.index) == place and each.incarnation <= member.incarnation:
                self._throw_away(each)

    def drop_replaced(self, view: View) -> None:
        """Drop everyone in whose place a view has somebody else."""
        for member in {*self._lines, *self._addresses, *self._held}:
            if view.replaces(member):
                self.drop(member)

    def close(self, linger_s: float) -> None:
        """Give what was sent this long to get out; it is waited for when the sockets' context ends."""
        for line in self._lines.values():
            line.socket.close(linger=round(linger_s * 1000))
        self._lines.clear()

    def _throw_away(self, member: Member) -> None:
        self._addresses.pop(member, None)
        self._dropped.unsent += len(self._held.pop(member, ()))
        if (line := self._lines.pop(member, None)) is not None:
            line.socket.close(linger=0)

    def _connected(self, member: Member) -> _Line | None:
        address = self._addresses.get(member)
        if address is None:
            return None
        # What two members send each other is moved by one thread of each, whichever life of a place it comes from.
        turn, thread = _number(self._member, member), _number(member, self._member)
        socket = self._sockets.connected(address, turn=turn, thread=thread)
        line = _Line(socket, Route(self._member, member).to_bytes())
        self._lines[member] = line
        line.send(Opening(self._own))
        return line

    def _is_gone(self, member: Member) -> bool:
        return member.incarnation <= self._gone.get((member.role, member.index), 0)


def _number(member: Member, other: Member) -> int:
    """Of a member among those of its role that have streams with another: nobody has one with itself."""
    return member.index - (member.role is other.role and member.index > other.index)
