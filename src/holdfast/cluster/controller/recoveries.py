"""Deaths until they are made up for: by which rung of the ladder, how long it took, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.cluster.controller.losses import Cost, Loss
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import FULL, PARITY, PARTIAL, Event, Recovered, Replaced, Started
from holdfast.runtime import Runtime


@dataclass(slots=True)
class _Recovery:
    member: Member  # who has the place now
    died_s: float
    by_spare: bool
    rows: int = 0
    saved_rows: int = 0
    cost: Cost | None = None  # None: workers have not said it yet
    took_s: float = 0.0
    at_s: float = 0.0


class Recoveries:
    """Knows of every death when it was heard of, and tells when and how it was made up for.

    Args:
        tell: Hears of it.
        runtime: Clock.
        parity: Whether servers are protected by parity.
    """

    def __init__(self, tell: Callable[[Event], object], runtime: Runtime, *, parity: bool) -> None:
        self._tell = tell
        self._runtime = runtime
        self._has_parity = parity
        self._began_s = runtime.monotonic_s()
        self._is_started = False
        self._open: dict[tuple[Role, int], _Recovery] = {}  # by place
        self._went_back: Cost | None = None  # what everyone lost
        self._unpriced: list[_Recovery] = []  # everyone is at work, and workers have yet to say what is lost

    @property
    def lost_servers(self) -> int:
        """How many servers' rows are not all there, or are, and what they lack is not charged yet."""
        return sum(role is Role.SERVER for role, _ in self._open) + len(self._unpriced)

    def begin(self, member: Member, *, by_spare: bool, loses: bool = True) -> None:
        """This one takes a dead one's place from now on, which may have taken another's a moment ago.

        Where all are to begin from a checkpoint anyway, it loses nothing, and workers have nothing to say of it. One
        that dies before it is known what it lacks counts as one death with its successor's, to whom workers say it.
        """
        unsaid = {_place(each.member): each for each in self._unpriced if each.cost is None}
        before = self._open.get(_place(member)) or unsaid.get(_place(member))
        self._unpriced = [each for each in self._unpriced if each is not before]
        died_s = self._runtime.monotonic_s() if before is None else before.died_s
        self._open[_place(member)] = _Recovery(member, died_s, by_spare, cost=None if loses else Cost())

    def goes_on(self, member: Member) -> None:
        """Whoever is in this place goes on as this member."""
        if (recovery := self._open.get(_place(member))) is not None:
            recovery.member = member

    def restored(self, server: Member, rows: int, saved_rows: int) -> None:
        """A server has its rows again: so many, of which some came from a save."""
        if (recovery := self._open.get(_place(server))) is not None:
            recovery.rows, recovery.saved_rows = rows - saved_rows, saved_rows

    def went_back(self, cost: Cost) -> None:
        """Everyone goes back, and takes so many steps again."""
        self._went_back = cost
        for recovery in self._open.values():
            recovery.cost = None

    def lost(self, loss: Loss) -> None:
        """All workers have said what rows of a server lack that came from a save."""
        for recovery in (*self._open.values(), *self._unpriced):
            if recovery.member == loss.server:
                recovery.cost = loss.cost

    def end(self) -> bool:
        """Everyone is at work; whether somebody was replaced for that."""
        ended, self._open = self._open, {}
        now_s, at_s = self._runtime.monotonic_s(), self._runtime.wall_s()
        for (role, _), each in ended.items():
            each.took_s, each.at_s = now_s - each.died_s, at_s
            self._tell(Replaced(member=each.member, by_spare=each.by_spare, at_s=at_s, took_s=each.took_s))
            if role is Role.SERVER:
                self._price(each)
        self._went_back = None
        return bool(ended)

    def start(self) -> bool:
        """Everyone is at work; whether that is so for the first time."""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            took_s = self._runtime.monotonic_s() - self._began_s
            self._tell(Started(at_s=self._runtime.wall_s(), took_s=took_s))
        return is_first

    def settle(self, otherwise: Cost | None = None) -> None:
        """Tell of those whose cost is known by now; at the end, where workers do not say it any more, by another."""
        waiting, self._unpriced = self._unpriced, []
        for each in waiting:
            each.cost = each.cost or otherwise
            if each.cost is not None:
                self._tell_recovered(each, PARTIAL)
            else:
                self._unpriced.append(each)

    def _price(self, recovery: _Recovery) -> None:
        """What parity gives costs nothing, and what a going back costs is known; of saved rows workers have to say."""
        if self._went_back is not None:
            recovery.cost = self._went_back
            self._tell_recovered(recovery, FULL)
        elif self._has_parity and not recovery.saved_rows:
            self._tell_recovered(recovery, PARITY)
        else:
            self._unpriced.append(recovery)

    def _tell_recovered(self, recovery: _Recovery, rung: str) -> None:
        cost = recovery.cost or Cost()
        self._tell(
            Recovered(
                member=recovery.member,
                rung=rung,
                rows=recovery.rows,
                saved_rows=recovery.saved_rows,
                at_s=recovery.at_s,
                took_s=recovery.took_s,
                lost_steps=cost.steps,
                lost_samples=cost.samples,
                lost_pls=cost.pls,
            )
        )


def _place(member: Member) -> tuple[Role, int]:
    return member.role, member.index
