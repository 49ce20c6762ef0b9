"""Hands a snapshot to the agent: the last part of a save that is the trainer's, or a server's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.checkpoint.snapshot.captured import Captured, Snapshot
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.checkpoint.trainer.announcement import Announcement, call_off
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.trainer.unsealed import Drain, Unsealed
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.errors import AgentDied
from holdfast.format.catalog import Intent
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")


class OnDevice(Protocol):
    """A snapshot of which a part lies in the buffers of devices."""

    @property
    def size_bytes(self) -> int:
        """What it has taken there so far."""
        ...

    @property
    def is_sliced(self) -> bool:
        """Whether some of it is read later, between the steps of training."""
        ...

    @property
    def can_wait(self) -> bool:
        """Whether nothing is left that training could change: all else can be done while it goes on."""
        ...

    def copy_rest(self, filler: FrameFiller) -> None:
        """Copy tables that are not on devices."""
        ...

    def drain(
        self,
        sink: AgentClient,
        buffer: FrameBuffer,
        *,
        complete: Callable[[], Captured],
        state_apart: bool,
        clock: Callable[[], float],
    ) -> Drain:
        """What empties the buffers; ``complete`` announces the snapshot, and gives all of it."""
        ...


class Stage(Protocol):
    """Takes what is on devices there."""

    def __call__(self, captured: Snapshot, /, *, in_slices: bool) -> OnDevice | None:
        """None: the buffers of devices are too small. ``in_slices``: some of it may be read later."""
        ...


MakeFiller = Callable[[AgentClient, FrameBuffer], FrameFiller]


class _Copied(NamedTuple):
    """A snapshot in the buffer, of which the agent knows nothing yet unless it needed room."""

    client: AgentClient
    full_bytes: int


class Handover:
    """Copies what is captured into the buffer, and counts what that has cost."""

    def __init__(
        self,
        buffer: FrameBuffer,
        outcomes: Outcomes,
        agents: Agents,
        filler: MakeFiller,
        *,
        stage: Stage | None = None,
        stand_back_s: float = 0.0,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``stage`` takes what is on devices there; None where nothing is.

        ``stand_back_s``: how long an agent leaves the cores to other ranks of its machine, which may still copy.
        """
        self._buffer = buffer
        self._stage = stage
        self._stand_back_s = stand_back_s
        self._copied: _Copied | None = None  # and not sealed yet
        self.device_bytes = 0  # what of the last snapshot has to leave its devices
        self._outcomes = outcomes
        self._agents = agents
        self._filler = filler
        self._runtime = runtime

    def take(
        self,
        intent: Intent,
        capture: Callable[[], Snapshot],
        *,
        started_s: float,
        state_apart: bool = False,
        in_slices: bool = False,
    ) -> bool:
        """Copy the snapshot, and seal it at once; False if the agent died meanwhile. See ``copy``."""
        copied = self.copy(intent, capture, started_s=started_s, state_apart=state_apart, in_slices=in_slices)
        return copied and self.seal(started_s)

    def copy(
        self,
        intent: Intent,
        capture: Callable[[], Snapshot],
        *,
        started_s: float,
        state_apart: bool = False,
        in_slices: bool = False,
        on_complete: Callable[[Captured], None] | None = None,
    ) -> bool:
        """Take the snapshot; False if the agent died meanwhile. ``capture`` is called once the save has begun.

        ``started_s`` is since when training waits, by the monotonic clock. ``in_slices``: what does not fit the buffers
        of devices may be read between the steps that follow. ``on_complete`` is told what the snapshot holds, maybe
        later. ``seal`` or ``abandon`` must come next.
        """
        try:
            self._copy(intent, capture, started_s, state_apart, in_slices, on_complete)
        except AgentDied as error:
            self._agents.lost(str(error))
            return False
        return True

    def seal(self, started_s: float) -> bool:
        """From here the agent commits what was copied; False if it died. What is on devices is sealed later."""
        copied, self._copied = self._copied, None
        if copied is None:
            return True
        try:
            stall_s = self._runtime.monotonic_s() - started_s
            copied.client.seal(copied.full_bytes, stall_s, stand_back_s=self._stand_back_s)
        except AgentDied as error:
            self._agents.lost(str(error))
            return False
        return True

    def abandon(self) -> None:
        """Give up what was copied, and wait until the agent has heard of it."""
        copied, self._copied = self._copied, None
        if copied is not None:
            copied.client.abandon()
            self._agents.settle()

    def _copy(
        self,
        intent: Intent,
        capture: Callable[[], Snapshot],
        started_s: float,
        state_apart: bool,
        in_slices: bool,
        on_complete: Callable[[Captured], None] | None,
    ) -> None:
        client = self._agents.client
        announcement: Announcement | None = None
        try:
            self._outcomes.begin(intent)
            snapshot = capture()
            announcement = Announcement(client, intent, snapshot, on_complete)
            on_device = self._staged(snapshot, in_slices)
            self.device_bytes = on_device.size_bytes if on_device is not None else 0
            if on_device is not None and on_device.can_wait:
                self._seal_later(announcement, on_device, started_s, state_apart)
                return
            captured = announcement.make()
            filler = self._filler(client, self._buffer)
            if on_device is None:
                captured.copy_into(filler, state_apart=state_apart)
                self._copied = _Copied(client, captured.full_bytes)
            else:
                on_device.copy_rest(filler)
                self._seal_later(announcement, on_device, started_s, state_apart)
        except AgentDied:
            raise
        except BaseException as error:
            if announcement is not None:
                announcement.withdraw()  # other ranks' agents learn it from ours
                self._agents.settle()
            else:
                if self._outcomes.in_flight is not None:
                    self._outcomes.give_up(repr(error))
                if intent.world > 1:  # the other ranks seal theirs, and need not wait for it
                    call_off(client, intent)
            raise
        self._count_wait(client.waited_s, filler.copied_bytes)

    def _staged(self, captured: Snapshot, in_slices: bool) -> OnDevice | None:
        if self._stage is None:
            return None
        found = self._stage(captured, in_slices=in_slices)
        if found is None:
            self._outcomes.wait_for_device()
        return found

    def _seal_later(self, announcement: Announcement, on_device: OnDevice, started_s: float, state_apart: bool) -> None:
        client, clock = announcement.client, self._runtime.monotonic_s
        drain = on_device.drain(client, self._buffer, complete=announcement.make, state_apart=state_apart, clock=clock)
        self._agents.seal_later(self._unsealed(announcement, drain, on_device, started_s))

    def _unsealed(self, announcement: Announcement, drain: Drain, on_device: OnDevice, started_s: float) -> Unsealed:
        return Unsealed(
            announcement,
            drain,
            stall_s=self._runtime.monotonic_s() - started_s,
            sealed=lambda stall_s, drain_s: self._sealed(on_device, drain, stall_s, drain_s),
            runtime=self._runtime,
        )

    def _sealed(self, on_device: OnDevice, drain: Drain, stall_s: float, drain_s: float) -> None:
        self._outcomes.drained(stall_s, drain_s, on_device.size_bytes, sliced=on_device.is_sliced)
        if drain.rushed_s is not None:
            self._outcomes.wait_for_device()

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
