"""Streams of a simulated job: as slow as they like, and cut now and then."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container
from typing import Any

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.streams import Incoming, Outgoing

Key = tuple[Member, Member]  # sender, receiver


class Stream:
    """One direction between two members."""

    def __init__(self, sender: Member, receiver: Member, speed: float, incoming: Incoming) -> None:
        self.sender = sender
        self.receiver = receiver
        self.process: Any = None  # the receiver's, once it is known: it is looked for very often
        self.speed = speed
        self.frames: deque[tuple[int, Message | None]] = deque()
        self.outgoing = Outgoing()
        self.incoming = incoming

    def cut(self, position: int) -> None:
        """A frame between the living is lost; the next heartbeat shows it."""
        del self.frames[position]
        self.frames.append((self.outgoing.number(), None))


class Network:
    """All streams."""

    def __init__(self, chance: random.Random, incoming: Callable[[], Incoming], *, slow: Role | None) -> None:
        self._chance = chance
        self._slow = slow  # whoever has streams that are very slow
        self._incoming = incoming
        self._streams: dict[Key, Stream] = {}
        self._full: dict[Stream, None] = {}  # as they came to have frames
        self.kinds: set[type] = set()  # of messages that arrived

    def send(self, sender: Member, sends: list[Send]) -> None:
        """Put frames on their way."""
        for each in sends:
            key = (sender, each.to)
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = Stream(*key, self._speed(*key), self._incoming())
            stream.frames.append((stream.outgoing.number(), each.message))
            self._full[stream] = None

    def _speed(self, sender: Member, receiver: Member) -> float:
        if sender.role is self._slow and (sender.role is Role.CONTROLLER or receiver.role is sender.role):
            return self._chance.choice((1.0, 0.001))
        return self._chance.choice((1.0, 1.0, 0.1, 0.01))

    def next(self, can_hear: Callable[[Stream], bool]) -> Stream | None:
        """A stream whose first frame arrives now."""
        streams = [each for each in self._full if can_hear(each)]
        if not streams:
            return None
        idle = 0.02 if self._slow else 0.0  # slow is slow, even where nothing else is under way
        weights = [*(each.speed for each in streams), idle]
        return self._chance.choices([*streams, None], weights)[0]

    def take(self, stream: Stream) -> tuple[bool, bool, Message | None]:
        """The first frame: whether it is accepted, whether its gap is news, and what it says."""
        number, message = stream.frames.popleft()
        if not stream.frames:
            del self._full[stream]
        was_broken = stream.incoming.is_broken
        accepted = stream.incoming.accept(number)
        self.kinds.add(type(message))
        return accepted, not was_broken, message

    def is_broken(self, is_member: Callable[[Member], bool]) -> bool:
        """Whether a receiver among these members has noticed a gap, and takes nothing more of that sender."""
        return any(
            stream.incoming.is_broken and is_member(sender) and is_member(receiver)
            for (sender, receiver), stream in self._streams.items()
        )

    def is_busy(self, members: Container[Member]) -> bool:
        """Whether something is on its way between two of these."""
        return any(each.sender in members and each.receiver in members for each in self._full)

    def cut(self) -> None:
        """Lose a frame."""
        if self._full:
            stream = self._chance.choice(list(self._full))
            stream.cut(self._chance.randrange(len(stream.frames)))

    def lose_last_words(self, member: Member) -> None:
        """Of what a dead process sent last, some is lost."""
        for stream in [each for each in self._full if each.sender == member]:
            for _ in range(self._chance.randint(0, len(stream.frames))):
                stream.frames.pop()
            if not stream.frames:
                del self._full[stream]
