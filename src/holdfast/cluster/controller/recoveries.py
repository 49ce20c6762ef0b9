"""Until when everyone is at work: for the first time, and again after deaths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster.core.members import Member
from holdfast.cluster.happenings import Event, Replaced, Started
from holdfast.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recovery:
    died_s: float
    by_spare: bool


class Recoveries:
    """Tells how long each of them took.

    Args:
        tell: Hears of it.
        runtime: Clock.
    """

    def __init__(self, tell: Callable[[Event], object], runtime: Runtime) -> None:
        self._tell = tell
        self._runtime = runtime
        self._began_s = runtime.monotonic_s()
        self._is_started = False
        self._under_way: dict[Member, _Recovery] = {}  # by replacement

    def begin(self, member: Member, *, by_spare: bool) -> None:
        """This one takes a dead one's place from now on."""
        self._under_way[member] = _Recovery(died_s=self._runtime.monotonic_s(), by_spare=by_spare)

    def end(self) -> bool:
        """Everyone is at work; whether somebody was replaced for that."""
        ended, self._under_way = self._under_way, {}
        now_s, at_s = self._runtime.monotonic_s(), self._runtime.wall_s()
        for member, each in ended.items():
            self._tell(Replaced(member=member, by_spare=each.by_spare, at_s=at_s, took_s=now_s - each.died_s))
        return bool(ended)

    def start(self) -> bool:
        """Everyone is at work; whether that is so for the first time."""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            took_s = self._runtime.monotonic_s() - self._began_s
            self._tell(Started(at_s=self._runtime.wall_s(), took_s=took_s))
        return is_first
