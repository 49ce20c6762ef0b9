"""Who has been silent for too long, by heartbeats. Times are given, never read."""

from __future__ import annotations

from holdfast.cluster.core.members import Member


class Liveness:
    """A member that is watched and was not heard from for ``timeout_s`` is overdue.

    ``tick`` has to be called several times within the timeout: when it was not, whoever watches was stopped itself,
    and what it missed meanwhile is nobody's silence.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadlines: dict[Member, float] = {}
        self._graces: dict[Member, float] = {}  # of those that were not heard yet
        self._next_lives: dict[Member, Member] = {}  # the last, of those that may not have heard that they go on as it
        self._ticked_s: float | None = None

    def watch(self, member: Member, now_s: float, *, grace_s: float = 0.0) -> None:
        """From now on; a process that starts may take ``grace_s`` longer until it is first heard."""
        self._graces[member] = grace_s
        self._extend(member, now_s)

    def goes_on(self, member: Member, next_life: Member, now_s: float, *, grace_s: float = 0.0) -> None:
        """It was told to go on as somebody else, and may not hear that for long: until then it lives as who it was.

        ``grace_s`` is how long it may be silent between these two lives, beyond the timeout.
        """
        earlier = [member, *self._earlier_lives(member)]
        self.forget(member)
        self._next_lives.update(dict.fromkeys(earlier, next_life))
        self.watch(next_life, now_s, grace_s=grace_s)

    def forget(self, member: Member) -> None:
        """It is dead, or replaced."""
        self._deadlines.pop(member, None)
        self._graces.pop(member, None)
        self._next_lives.pop(member, None)
        self._forget_earlier_lives(member)

    def heard(self, member: Member, now_s: float) -> bool:
        """It lives; False: nobody counts on it any more, or yet."""
        if member in self._deadlines:
            self._graces.pop(member, None)
            self._forget_earlier_lives(member)
        elif (next_life := self._next_lives.get(member)) is not None:
            member = next_life
        else:
            return False
        self._extend(member, now_s)
        return True

    def counts_on(self, member: Member) -> bool:
        """Whether it is watched, as who it is or as who it is to be."""
        return member in self._deadlines or member in self._next_lives

    def was_heard(self, member: Member) -> bool:
        """Whether it has lived since it is watched."""
        return member in self._deadlines and member not in self._graces

    def tick(self, now_s: float) -> None:
        """Time passes for the one who watches."""
        before, self._ticked_s = self._ticked_s, now_s
        if before is not None and now_s - before > self._timeout_s / 2:
            for member in self._deadlines:
                self._deadlines[member] += now_s - before

    def overdue(self, now_s: float) -> list[Member]:
        """Those whose time has run out, as long as they are not forgotten."""
        return [member for member, deadline in self._deadlines.items() if now_s > deadline]

    def _extend(self, member: Member, now_s: float) -> None:
        self._deadlines[member] = now_s + self._timeout_s + self._graces.get(member, 0.0)

    def _earlier_lives(self, member: Member) -> list[Member]:
        return [earlier for earlier, last in self._next_lives.items() if last == member]

    def _forget_earlier_lives(self, member: Member) -> None:
        for earlier in self._earlier_lives(member):
            del self._next_lives[earlier]
