"""Streams of a simulated job: as slow as they like, and cut now and then."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.streams import Incoming, Outgoing

Key = tuple[Member, Member]  # sender, receiver


class Stream:
    """One direction between two members."""

    def __init__(self, speed: float, incoming: Incoming) -> None:
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
        self._full: dict[Key, Stream] = {}
        self.kinds: set[type] = set()  # of messages that arrived

    def send(self, sender: Member, sends: list[Send]) -> None:
        """Put frames on their way."""
        for each in sends:
            key = (sender, each.to)
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = Stream(self._speed(sender), self._incoming())
            stream.frames.append((stream.outgoing.number(), each.message))
            self._full[key] = stream

    def _speed(self, sender: Member) -> float:
        if sender.role is self._slow:
            return self._chance.choice((1.0, 0.001))
        return self._chance.choice((1.0, 1.0, 0.1, 0.01))

    def next(self, can_hear: Callable[[Member, Member], bool]) -> Key | None:
        """A stream whose first frame arrives now."""
        keys = [key for key in self._full if can_hear(*key)]
        if not keys:
            return None
        idle = 0.02 if self._slow else 0.0  # slow is slow, even where nothing else is under way
        weights = [*(self._full[key].speed for key in keys), idle]
        return self._chance.choices([*keys, None], weights)[0]

    def take(self, key: Key) -> tuple[bool, bool, Message | None]:
        """The first frame: whether it is accepted, whether its gap is news, and what it says."""
        stream = self._streams[key]
        number, message = stream.frames.popleft()
        if not stream.frames:
            del self._full[key]
        was_broken = stream.incoming.is_broken
        accepted = stream.incoming.accept(number)
        self.kinds.add(type(message))
        return accepted, not was_broken, message

    def cut(self) -> None:
        """Lose a frame."""
        if self._full:
            stream = self._full[self._chance.choice(list(self._full))]
            stream.cut(self._chance.randrange(len(stream.frames)))

    def lose_last_words(self, member: Member) -> None:
        """Of what a dead process sent last, some is lost."""
        for key in [key for key in self._full if key[0] == member]:
            frames = self._full[key].frames
            for _ in range(self._chance.randint(0, len(frames))):
                frames.pop()
            if not frames:
                del self._full[key]
