"""How far a worker that died had come."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Standing
from holdfast.cluster.core.progress import BEGINNING, Progress


@dataclass(slots=True)
class Inquest:
    """What servers say about the pushes of a worker that was replaced."""

    replacement: Member
    asked: set[Member]
    found: dict[int, Progress] = field(default_factory=dict)  # by server
    stable: Progress = BEGINNING

    def hear(self, server: Member, standing: Standing) -> None:
        """A server's answer."""
        if standing.progress is not None:
            self.found[server.index] = standing.progress
        self.stable = max(self.stable, standing.stable, key=lambda each: each.pushed)
        self.asked.discard(server)

    def forget(self, server: Member) -> None:
        """A server that died: its answer is void."""
        self.found.pop(server.index, None)
        self.asked.discard(server)

    def conclusion(self, servers: int) -> Progress:
        """Where the replacement goes on: behind the last push that every server has applied.

        Those that have applied more skip what comes again. A server that died as well, and is new, may have applied
        no more than what its predecessor was known to have applied by all the others.
        """
        known = list(self.found.values())
        unknown = [self.stable] if len(known) < servers else []
        return min((*known, *unknown), key=lambda each: each.pushed)
