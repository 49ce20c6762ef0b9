"""The trainer's side of one agent: sends it frames, receives the outcomes of saves, checks that it is alive."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.trainer.launcher import Handle
from holdfast.checkpoint.trainer.liveness import Limits, Liveness
from holdfast.checkpoint.trainer.wait import Wait
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import (
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
    Pong,
    Raised,
    RaiseTerm,
    Resolve,
    Seal,
    StandBack,
    TableSlice,
)
from holdfast.errors import AgentDied
from holdfast.format.catalog import Intent
from holdfast.runtime import SYSTEM, Runtime

_POLL_S = 0.5
_END_S = 15.0  # from the last message to the end of the process
_REAP_S = 10.0  # from SIGKILL to that; longer, and it is in the kernel's hands


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The agent ended without being asked to."""

    message: str


AgentEvent = Committed | Failed | GridNews | Notice | Raised | Lost


class AgentClient:
    """Used from the training thread only. One that shows no sign of life for too long is killed, and so lost."""

    def __init__(self, buffer: FrameBuffer, agent: Handle, limits: Limits, *, runtime: Runtime = SYSTEM) -> None:
        self._agent = agent
        self._runtime = runtime
        self._liveness = Liveness(limits, runtime=runtime)
        self._free = list(range(buffer.frames))
        self._held_back: list[StandBack | Begin | FrameFilled] = []
        self._events: list[AgentEvent] = []
        self._lost = False
        self._given_up = False  # and killed, if it can be
        self.waited_s = 0.0  # for frames, in the snapshot under way

    @property
    def pid(self) -> int | None:
        """The agent's process id."""
        return self._agent.pid

    @property
    def free_frames(self) -> int:
        """How many frames are available without waiting."""
        return len(self._free)

    @property
    def is_lost(self) -> bool:
        """Whether the agent is gone, or given up."""
        return self._lost

    @property
    def has_ended(self) -> bool:
        """Whether its process is no more. One that is lost and has not ended could not be killed."""
        return self._agent.wait(0.0)

    @property
    def state(self) -> str:
        """What it does, as far as is known."""
        return self._liveness.state

    def begin(self, intent: Intent, tables: Sequence[TableSlice], tensors: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Announce a snapshot.

        This and its frames are held back until the snapshot is sealed or frames run out: an agent that goes to work
        while the trainer still copies lengthens the wait (measured: by 3 ms of 37).
        """
        if self._lost:
            raise AgentDied("no agent is running, and none could be started")
        self.waited_s = 0.0
        specs = [(dtype, list(shape)) for dtype, shape in tensors]
        self._held_back = [Begin(intent=intent.to_json(), tables=list(tables), tensors=specs)]

    def acquire_frame(self) -> int:
        """A frame to fill; waits for the agent where none is free. Raises AgentDied rather than wait for a dead one."""
        if not self._free:
            self._release()
            waiting = Wait("space in the snapshot buffer", runtime=self._runtime)
            while not self._free:
                self._receive(_POLL_S)
                self._attend()
                waiting.tell(self.state)
            self.waited_s += waiting.seconds
        return self._free.pop()

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Hand a filled frame over."""
        self._held_back.append(FrameFilled(frame=frame, used=used, chunks=list(chunks)))

    def return_frame(self, frame: int) -> None:
        """Take back a frame that was acquired and will not be filled."""
        self._free.append(frame)

    def release(self) -> None:
        """Send what is held back, for frames to be freed."""
        self._release()

    def seal(self, full_bytes: int, stall_s: float | None = None, *, stand_back_s: float = 0.0) -> None:
        """From here the agent commits the snapshot, whatever becomes of us.

        It goes to work after ``stand_back_s``, unless it has begun because frames ran out.
        """
        if stand_back_s and self._held_back and isinstance(self._held_back[0], Begin):
            self._held_back.insert(0, StandBack(seconds=stand_back_s))
        self._release(Seal(full_bytes=full_bytes, stall_s=stall_s))

    def abandon(self) -> None:
        """Give an unfinished snapshot up; the agent hears of it in any case and reports its end."""
        self._free.extend(message.frame for message in self._held_back if isinstance(message, FrameFilled))
        announced = [message for message in self._held_back if isinstance(message, Begin)]
        self._held_back.clear()
        self._request(*announced, Cancel())

    def cancel(self) -> None:
        """Ask the agent to give the save up; how it ended comes as an event, as does the agent's own end."""
        self._request(Cancel())

    def resolve(self, checkpoint: str) -> None:
        """Ask whether a checkpoint was committed; the answer comes as an event, as does the agent's own end."""
        self._request(Resolve(checkpoint=checkpoint))

    def raise_term(self) -> None:
        """Ask the agent to raise the run's term, after what it was asked before; a Raised event answers."""
        self._request(RaiseTerm())

    def annotate(self, checkpoint: str, metrics: dict[str, float]) -> None:
        """Attach late metrics to a committed checkpoint."""
        self._send(Annotate(checkpoint=checkpoint, metrics=metrics))

    def arrange(self) -> None:
        """Ask the agent to rearrange all that is due; a GridNews event says when it has."""
        self._request(Arrange())

    def poll(self, timeout_s: float = 0.0) -> list[AgentEvent]:
        """What happened since the last call; waits up to ``timeout_s`` for a first message, which may be no event.

        That the agent was lost is told once.
        """
        if self._lost:
            return self._taken_events()
        try:
            self._receive(timeout_s)
            self._attend()
        except AgentDied as error:
            self._events.append(Lost(message=str(error)))
        return self._taken_events()

    def close(self) -> list[AgentEvent]:
        """Let the agent finish and exit, unless it is lost; returns what it reported meanwhile."""
        if not self._lost:
            self._finish()
        self._agent.channel.close()
        return self._taken_events()

    def _finish(self) -> None:
        waiting = Wait("the agent to finish", runtime=self._runtime)
        try:
            self._send(Close())
            while True:
                self._receive(_POLL_S)
                self._attend()
                waiting.tell(self.state)
        except AgentDied as error:  # it hangs up when it has finished
            if self._given_up:
                self._events.append(Lost(message=str(error)))

    def _taken_events(self) -> list[AgentEvent]:
        events, self._events = self._events, []
        return events

    def _release(self, *last: Message) -> None:
        self._send(*self._held_back, *last)
        self._held_back.clear()

    def _request(self, *messages: Message) -> None:
        """Send what an event answers, be it that the agent is lost."""
        if self._lost:
            return
        try:
            self._send(*messages)
        except AgentDied as error:
            self._events.append(Lost(message=str(error)))

    def _send(self, *messages: Message) -> None:
        try:
            self._agent.channel.send(*messages, meanwhile=lambda: self._judge(deaf=True))
        except ChannelClosed as error:
            raise self._died() from error

    def _receive(self, timeout_s: float) -> bool:
        """Take in one message; False if none came."""
        try:
            message = self._agent.channel.receive(timeout_s)
        except ChannelClosed as error:
            raise self._died() from error
        if isinstance(message, Freed):
            self._free.append(message.frame)
        elif isinstance(message, Pong):
            self._liveness.heard(message)
        elif isinstance(message, Committed | Failed | GridNews | Notice | Raised):
            self._events.append(message)
        return message is not None

    def _attend(self) -> None:
        """Let the agent give a sign of life; raises AgentDied, the agent killed, if it has given none for too long."""
        self._judge()
        if self._agent.channel.has_room and (ping := self._liveness.ask()) is not None:
            with suppress(ChannelClosed):  # whoever receives next learns why
                self._agent.channel.send(ping)

    def _judge(self, *, deaf: bool = False) -> None:
        while self._receive(0.0):
            pass
        if (problem := self._liveness.verdict(deaf=deaf)) is not None:
            self._lost = self._given_up = True
            killed = self._agent.kill(_REAP_S)
            raise AgentDied(f"{problem} and was killed" if killed else f"{problem} and cannot be killed")

    def _died(self) -> AgentDied:
        if not self._agent.wait(_END_S):  # raises, each time, what would have ended the trainer too
            self._agent.kill(_REAP_S)
        self._lost = True
        return AgentDied(f"the agent ended unexpectedly ({self._agent.last_words()})")
