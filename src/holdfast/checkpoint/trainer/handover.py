"""Hands a snapshot to the agent: the last part of a save that is the trainer's, or a server's."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.errors import AgentDied
from holdfast.format.catalog import Intent
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

MakeFiller = Callable[[AgentClient, FrameBuffer], FrameFiller]


class Handover:
    """Copies what is captured into the buffer, and counts what that has cost."""

    def __init__(
        self,
        buffer: FrameBuffer,
        outcomes: Outcomes,
        agents: Agents,
        filler: MakeFiller,
        *,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._buffer = buffer
        self._outcomes = outcomes
        self._agents = agents
        self._filler = filler
        self._runtime = runtime

    def take(
        self, intent: Intent, capture: Callable[[], Captured], *, started_s: float, state_apart: bool = False
    ) -> bool:
        """Take the snapshot; False if the agent died meanwhile. ``capture`` is called once the save has begun.

        ``started_s`` is since when training waits, by the monotonic clock.
        """
        try:
            self._take(intent, capture, started_s, state_apart)
        except AgentDied as error:
            self._agents.lost(str(error))
            return False
        return True

    def _take(self, intent: Intent, capture: Callable[[], Captured], started_s: float, state_apart: bool) -> None:
        client = self._agents.client
        self._outcomes.begin(intent)
        begun = False
        try:
            captured = capture()
            client.begin(intent, captured.slices, captured.tensor_specs)
            begun = True
            filler = self._filler(client, self._buffer)
            captured.copy_into(filler, state_apart=state_apart)
            client.seal(captured.full_bytes, self._runtime.monotonic_s() - started_s)
        except AgentDied:
            raise
        except BaseException as error:
            if begun:
                client.abandon()
                self._agents.settle()
            else:
                self._outcomes.give_up(repr(error))
            raise
        self._count_wait(client.waited_s, filler.copied_bytes)

    def _count_wait(self, waited_s: float, needed_bytes: int) -> None:
        """Count and report a snapshot that waited for the agent because it did not fit in the buffer."""
        if not waited_s:
            return
        self._outcomes.wait_for_buffer()
        logger.warning(
            "a snapshot of %.1f MiB waited %.2f s for the agent, because the buffer has only %.1f MiB; set "
            "buffer_bytes=%d to avoid this",
            needed_bytes / 2**20,
            waited_s,
            self._buffer.frames * self._buffer.frame_bytes / 2**20,
            needed_bytes + self._buffer.frame_bytes,
        )
