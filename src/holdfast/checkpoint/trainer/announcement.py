"""What the agent is told of a snapshot before its first frame: the tables and the tensors that it will hold."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.snapshot.captured import Captured, Snapshot
from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.errors import AgentDied
from holdfast.format.catalog import Intent


class Announcement:
    """Made when the snapshot is put together, which may be while training goes on already."""

    def __init__(
        self,
        client: AgentClient,
        intent: Intent,
        snapshot: Snapshot,
        on_complete: Callable[[Captured], None] | None = None,
    ) -> None:
        """Raises AgentDied if there is nobody to tell. ``on_complete`` is told, too."""
        if client.is_lost:
            raise AgentDied("no agent is running, and none could be started")
        self.client = client
        self._intent = intent
        self._snapshot = snapshot
        self._on_complete = on_complete
        self._captured: Captured | None = None
        self.is_made = False

    def make(self) -> Captured:
        """Announce it; what it holds."""
        if self._captured is None:
            self._captured = captured = self._snapshot.complete()
            self.client.begin(self._intent, captured.slices, captured.tensor_specs)
            self.is_made = True
            if self._on_complete is not None:
                self._on_complete(captured)
        return self._captured

    def withdraw(self) -> None:
        """The snapshot is given up. The agent hears of it in any case, and reports its end."""
        if self.is_made:
            self.client.abandon()
        else:
            self.is_made = True
            call_off(self.client, self._intent)


def call_off(client: AgentClient, intent: Intent) -> None:
    """Give up a snapshot of which the agent knows nothing: it reports its end, and other ranks' agents learn of it."""
    if not client.is_lost:
        client.begin(intent, (), ())
    client.abandon()
