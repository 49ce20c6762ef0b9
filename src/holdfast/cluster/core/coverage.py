"""Whether every row is protected, from what servers say of their rows and parities."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.parity_messages import Redundant


class Coverage:
    """The books of a controller.

    A server whose rows came from a save makes others encode parities anew, and what they say of that may arrive before
    or after what it says itself. So each says how often it had to, and a server for how often its hosts had to.

    Nobody else knows of that where such a server dies before it is heard. So what servers say counts for one view: who
    has it takes nothing more from the dead, and those who live are heard before all of them are whole.
    """

    def __init__(self) -> None:
        self._whole: dict[Member, Redundant] = {}  # what they said last
        self._dropped: dict[Member, int] = {}  # by host, how often it must have been whole again
        self._encoded = 0

    def hear(self, server: Member, redundant: Redundant, view: View) -> None:
        """What a server says."""
        self._whole[server] = redundant
        self._encoded += redundant.stripes
        for each in redundant.dropped:
            self._dropped[each.host] = max(each.times, self._dropped.get(each.host, 0))
        self._whole = {each: said for each, said in self._whole.items() if view.holds(each)}
        self._dropped = {each: times for each, times in self._dropped.items() if view.holds(each)}

    def is_complete(self, view: View) -> bool:
        """Whether all servers are whole, after all that any made them encode anew."""
        return all(self._is_whole(each, view) for each in view.members if each.role is Role.SERVER)

    def _is_whole(self, server: Member, view: View) -> bool:
        said = self._whole.get(server)
        return said is not None and said.view == view.number and said.times >= self._dropped.get(server, 0)

    def take_encoded(self) -> int:
        """How many parities were encoded since this was last asked."""
        encoded, self._encoded = self._encoded, 0
        return encoded
