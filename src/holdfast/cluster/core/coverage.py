"""Whether every row is protected, from what servers say of their rows and parities."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.parity_messages import Redundant


class Coverage:
    """The books of a controller.

    A server whose rows came from a save makes others encode parities anew, and what they say of that may arrive before
    or after what it says itself. So each says how often it had to, and a server for how often its hosts had to.
    """

    def __init__(self) -> None:
        self._whole: dict[Member, int] = {}  # as of how many times that it had to encode parities anew
        self._dropped: dict[Member, int] = {}  # by host, how often it must have been whole again
        self._encoded = 0

    def hear(self, server: Member, redundant: Redundant) -> None:
        """What a server says."""
        self._whole[server] = redundant.times
        self._encoded += redundant.stripes
        for each in redundant.dropped:
            self._dropped[each.host] = max(each.times, self._dropped.get(each.host, 0))

    def is_complete(self, view: View) -> bool:
        """Whether all servers are whole, after all that any made them encode anew."""
        servers = (each for each in view.members if each.role is Role.SERVER)
        return all(each in self._whole and self._whole[each] >= self._dropped.get(each, 0) for each in servers)

    def take_encoded(self) -> int:
        """How many parities were encoded since this was last asked."""
        encoded, self._encoded = self._encoded, 0
        return encoded
