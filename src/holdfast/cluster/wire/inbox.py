"""What is taken in of what arrives: by stream, in order, from the newest incarnation only. No socket here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.streams import Incoming
from holdfast.cluster.wire.frames import Route


@dataclass(slots=True)
class Dropped:
    """Messages that were not taken in, by reason."""

    malformed: int = 0
    misdirected: int = 0  # to another member, or another incarnation
    outdated: int = 0  # from an incarnation older than one that was heard
    unknown: int = 0  # from a member that the job does not have
    broken: int = 0  # after a gap
    unsent: int = 0  # to a member that was disconnected


@dataclass(slots=True)
class _Stream:
    sender: Member
    route: bytes
    incoming: Incoming = field(default_factory=Incoming)


class Inbox:
    """The receiving ends of all streams that lead to one member.

    Args:
        member: Whose they are.
        admits: Whether a job has such a member; asked once a stream.
    """

    def __init__(self, member: Member, admits: Callable[[Member], bool]) -> None:
        self._member = member
        self._admits = admits
        self._streams: dict[bytes, _Stream] = {}  # by route
        self._newest: dict[tuple[Role, int], _Stream] = {}
        self._broken: list[Member] = []
        self.dropped = Dropped()

    def accept(self, route: bytes, number: int) -> Member | None:
        """Who sent this frame; None: it is dropped. Raises ``MalformedFrame`` where the route is none."""
        stream = self._streams.get(route) or self._begin(route)
        if stream is None:
            return None
        if stream.incoming.is_broken:
            self.dropped.broken += 1
            return None
        if stream.incoming.accept(number):
            return stream.sender
        self._broken.append(stream.sender)
        return None

    def condemn(self, route: bytes) -> None:
        """A frame of this stream was accepted and is malformed: the stream ends as with a gap."""
        stream = self._streams[route]
        stream.incoming.is_broken = True
        self._broken.append(stream.sender)

    def take_broken(self) -> list[Member]:
        """Whose streams have a gap, each once."""
        broken, self._broken = self._broken, []
        return broken

    def _begin(self, data: bytes) -> _Stream | None:
        route = Route.from_bytes(data)
        sender, place = route.sender, (route.sender.role, route.sender.index)
        newest = self._newest.get(place)
        if route.receiver != self._member:
            self.dropped.misdirected += 1
        elif newest is not None and sender.incarnation < newest.sender.incarnation:
            self.dropped.outdated += 1
        elif not self._admits(sender):
            self.dropped.unknown += 1
        else:
            if newest is not None:
                del self._streams[newest.route]
            self._newest[place] = self._streams[data] = _Stream(sender, data)
            return self._newest[place]
        return None
