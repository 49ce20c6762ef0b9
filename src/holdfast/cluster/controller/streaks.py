"""Deaths of one place in a row: how long to wait before its next process starts, and when to give it up."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cluster.core.members import Member, Role
from holdfast.runtime import Runtime

_MOST_ON_THE_SPOT = 5  # in a row, between which the job did not move
_MOST_IN_VAIN = 20  # in a row, between which it moved, and never came further than before
_UNRELATED_S = 600.0  # between two deaths: what ends so late has worked
_PAUSES_S = (0.0, 1.0, 5.0, 15.0, 60.0, 300.0)  # before the next start, after so many deaths on the spot


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a job has come, as a place sees it."""

    checkpoint: int  # the last save that became one
    steps: int  # a worker's own, or everyone's

    def is_beyond(self, other: Mark) -> bool:
        """Whether something was gained since."""
        return self.checkpoint > other.checkpoint or self.steps > other.steps


@dataclass(slots=True)
class _Streak:
    mark: Mark  # at the last death
    furthest: Mark
    died_s: float
    on_the_spot: int = 1
    in_vain: int = 1


class Streaks:
    """Tells a process that is killed now and then from one that will always die.

    A death alone says little: processes are killed from outside, others take their places, and the job comes further.
    A ``train`` that needs more memory than there is dies in every life, and the job stays where it is.

    Args:
        runtime: Clock.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._streaks: dict[tuple[Role, int], _Streak] = {}

    def died(self, member: Member, mark: Mark) -> None:
        """Whoever was in this place died, when the job had come this far."""
        now_s, streak = self._runtime.monotonic_s(), self._streaks.get(_place(member))
        if streak is None or now_s - streak.died_s > _UNRELATED_S:
            self._streaks[_place(member)] = _Streak(mark, mark, now_s)
            return
        is_beyond = mark.is_beyond(streak.furthest)
        streak.on_the_spot = streak.on_the_spot + 1 if mark == streak.mark else 1
        streak.in_vain = 1 if is_beyond else streak.in_vain + 1
        streak.furthest = mark if is_beyond else streak.furthest
        streak.mark, streak.died_s = mark, now_s

    def forget(self, member: Member) -> None:
        """Whoever is in this place has worked well."""
        self._streaks.pop(_place(member), None)

    def length(self, member: Member) -> int:
        """How often this place has died on the spot."""
        streak = self._streaks.get(_place(member))
        return 0 if streak is None else streak.on_the_spot

    def pause_s(self, member: Member) -> float:
        """How long to wait before the next process starts: what is short of memory may have more of it later."""
        length = min(self.length(member), len(_PAUSES_S))
        return _PAUSES_S[length - 1] if length else 0.0

    def verdict(self, member: Member) -> str:
        """Why nobody else should be started in this place; empty: somebody should."""
        streak = self._streaks.get(_place(member))
        if streak is None:
            return ""
        place = f"{member.role.value} {member.index}"
        if streak.on_the_spot >= _MOST_ON_THE_SPOT:
            return f"{place} died {streak.on_the_spot} times in a row without getting anywhere"
        if streak.in_vain >= _MOST_IN_VAIN:
            return f"{place} died {streak.in_vain} times in a row, and the job came no further than before the first"
        return ""


def _place(member: Member) -> tuple[Role, int]:
    return member.role, member.index
