"""The trainer's side of the agent: hands it frames, learns how saves ended, replaces it when it dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.buffer import FrameBuffer
from holdfast.checkpoint.channel import (
    Annotate,
    Arrange,
    Begin,
    Cancel,
    ChannelClosed,
    Close,
    Committed,
    Failed,
    FrameChunk,
    FrameFilled,
    Freed,
    GridNews,
    Message,
    Notice,
    Resolve,
    Seal,
    TableSlice,
)
from holdfast.checkpoint.launch import Handle
from holdfast.errors import AgentDied
from holdfast.format.catalog import Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The agent ended without being asked to."""

    message: str


Event = Committed | Failed | GridNews | Notice | Lost


class AgentClient:
    """One agent at a time; used from the training thread only."""

    def __init__(self, buffer: FrameBuffer, start: Callable[[], Handle]) -> None:
        self._buffer = buffer
        self._start = start
        self._agent = start()
        self._free = list(range(buffer.frames))
        self._held_back: list[Begin | FrameFilled] = []
        self._events: list[Event] = []
        self._lost = False
        self.waited_s = 0.0  # for frames, in the snapshot under way

    @property
    def pid(self) -> int | None:
        """The agent's process."""
        return self._agent.pid

    @property
    def free_frames(self) -> int:
        """How many frames can be had without waiting."""
        return len(self._free)

    @property
    def is_lost(self) -> bool:
        """Whether the agent is gone and no other was started."""
        return self._lost

    def begin(self, intent: Intent, tables: Sequence[TableSlice], tensors: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Announce a snapshot; to a new agent if the last one was lost and not replaced.

        This and its frames are held back until the snapshot is sealed or frames run out: an agent that goes to work
        while the trainer still copies lengthens the wait (measured: by 3 ms of 37).
        """
        if self._lost:
            self.restart()
        self.waited_s = 0.0
        specs = [(dtype, list(shape)) for dtype, shape in tensors]
        self._held_back = [Begin(intent=intent.to_json(), tables=list(tables), tensors=specs)]

    def acquire_frame(self) -> int:
        """A frame to fill; waits for the agent where none is free. Raises AgentDied rather than wait for a dead one."""
        if not self._free:
            self._release()
            started = time.monotonic()
            while not self._free:
                self._receive(None)
            self.waited_s += time.monotonic() - started
        return self._free.pop()

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Hand a filled frame over."""
        self._held_back.append(FrameFilled(frame=frame, used=used, chunks=list(chunks)))

    def seal(self, full_bytes: int, stall_s: float | None = None) -> None:
        """From here the agent commits the snapshot, whatever becomes of us."""
        self._release(Seal(full_bytes=full_bytes, stall_s=stall_s))

    def abandon(self) -> None:
        """Give an unfinished snapshot up; the agent hears of it in any case and reports its end."""
        self._free.extend(message.frame for message in self._held_back if isinstance(message, FrameFilled))
        announced = [message for message in self._held_back if isinstance(message, Begin)]
        self._held_back.clear()
        with suppress(ChannelClosed):
            self._agent.channel.send(*announced, Cancel())

    def cancel(self) -> None:
        """Ask the agent to give the save up; how it ended comes as an event, as does the agent's own end."""
        with suppress(ChannelClosed):
            self._agent.channel.send(Cancel())

    def resolve(self, checkpoint: str) -> None:
        """Ask whether a checkpoint was committed; the answer comes as an event, as does the agent's own end."""
        with suppress(ChannelClosed):
            self._agent.channel.send(Resolve(checkpoint=checkpoint))

    def annotate(self, checkpoint: str, metrics: dict[str, float]) -> None:
        """Attach late metrics to a committed checkpoint."""
        self._send(Annotate(checkpoint=checkpoint, metrics=metrics))

    def arrange(self) -> None:
        """Ask the agent to rearrange all that is due; a GridNews event says when it has."""
        with suppress(ChannelClosed):
            self._agent.channel.send(Arrange())

    def poll(self, timeout_s: float | None = 0.0) -> list[Event]:
        """What happened since the last call; waits up to ``timeout_s`` for a first event (None: without end).

        That the agent was lost is told once.
        """
        if self._lost:
            return []
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while self._receive(_left(deadline) if not self._events else 0.0):
                pass
        except AgentDied as error:
            self._events.append(Lost(message=str(error)))
        events, self._events = self._events, []
        return events

    def restart(self) -> None:
        """Start another agent; every frame is ours again."""
        self._agent.channel.close()
        self._free = list(range(self._buffer.frames))
        self._held_back.clear()
        self._agent = self._start()
        self._lost = False

    def close(self, timeout_s: float | None = None) -> bool:
        """Let the agent finish and end; whether it did in time."""
        with suppress(ChannelClosed):
            self._agent.channel.send(Close())
        return self._agent.wait(timeout_s)

    def _release(self, *last: Message) -> None:
        self._send(*self._held_back, *last)
        self._held_back.clear()

    def _send(self, *messages: Message) -> None:
        try:
            self._agent.channel.send(*messages)
        except ChannelClosed as error:
            raise self._died() from error

    def _receive(self, timeout_s: float | None) -> bool:
        """Take in one message; False if none came."""
        try:
            message = self._agent.channel.receive(timeout_s)
        except ChannelClosed as error:
            raise self._died() from error
        if isinstance(message, Freed):
            self._free.append(message.frame)
        elif isinstance(message, Committed | Failed | GridNews | Notice):
            self._events.append(message)
        return message is not None

    def _died(self) -> AgentDied:
        self._agent.wait(5.0)
        self._lost = True
        return AgentDied(f"the agent ended unexpectedly ({self._agent.last_words()})")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
