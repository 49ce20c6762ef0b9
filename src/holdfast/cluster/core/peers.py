"""The servers that a server knows, each in the newest incarnation that it has heard of."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role, View


class Peers:
    """All servers of a job, by index."""

    def __init__(self, view: View) -> None:
        self._incarnations = list(view.servers)

    def member(self, index: int) -> Member:
        """Whoever is in this place."""
        return Member(Role.SERVER, index, self._incarnations[index])

    def is_replaced(self, member: Member) -> bool:
        """Whether a newer one is known."""
        return member.incarnation < self._incarnations[member.index]

    def adopt(self, member: Member) -> bool:
        """Whether this one is news: its predecessor is not heard any more."""
        if member.incarnation <= self._incarnations[member.index]:
            return False
        self._incarnations[member.index] = member.incarnation
        return True
