"""How a job stands on its ladder, from its events: for the live view."""

from __future__ import annotations

from holdfast.cluster.core.members import Role
from holdfast.cluster.happenings import PARITY, Died, Event, LadderChosen, Recovered, Redundant, WentBack
from holdfast.figures import NOTHING, number


class Protection:
    """Its rungs, whether every row is protected, and the last rung that was taken."""

    def __init__(self) -> None:
        self.ladder = NOTHING
        self.redundancy = NOTHING
        self.last = "none yet"
        self._counts: dict[str, int] = {}
        self._has_parity = False

    def tell(self, event: Event) -> None:
        """Something happened."""
        match event:
            case LadderChosen(rungs=rungs):
                self.ladder = rungs
                self._has_parity = rungs.startswith(PARITY)
                self._stand("being built")
            case Died(member=member) if member.role is Role.SERVER:
                self._stand("being rebuilt")
            case WentBack():
                self._stand("being rebuilt")
            case Redundant(took_s=took_s):
                self._stand(f"whole, after {took_s:.1f} s")
            case Recovered():
                self._counts[event.rung] = self._counts.get(event.rung, 0) + 1
                self.last = self._told(event)

    def _stand(self, redundancy: str) -> None:
        if self._has_parity:
            self.redundancy = redundancy

    def _told(self, event: Recovered) -> str:
        lost = f", {event.lost_steps} steps" if event.lost_steps else ", nothing lost"
        pls = f", PLS {number(event.lost_pls)}" if event.lost_pls else ""
        taken = ", ".join(f"{count} by {rung}" for rung, count in self._counts.items())
        return f"{event.rung}, {event.took_s:.1f} s{lost}{pls} ({taken})"
