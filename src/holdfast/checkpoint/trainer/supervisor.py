"""A trainer's agents in succession: listens to the current one, and replaces it when it dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.trainer.agent_client import AgentClient, AgentEvent, Lost
from holdfast.checkpoint.trainer.fence import Fence
from holdfast.checkpoint.trainer.in_flight import InFlight
from holdfast.checkpoint.trainer.launcher import Launcher
from holdfast.checkpoint.trainer.liveness import Limits
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.unsealed import Unsealed
from holdfast.checkpoint.trainer.wait import Wait
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import Committed, Failed, GridNews, Notice, Raised
from holdfast.errors import AgentDied, BaseDropped, ConfigurationError, SaveCancelled, SaveFailed, TakenOver
from holdfast.format.catalog import Entry
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

_MAX_DEATHS = 3  # agents that may die in a row before the save they were asked about counts as failed
_POLL_S = 0.5


class Agents:
    """Relays what the current agent reports; its successor is asked about saves whose outcome is unknown."""

    def __init__(
        self,
        buffer: FrameBuffer,
        launch: Launcher,
        outcomes: Outcomes,
        fence: Fence,
        limits: Limits,
        *,
        in_grid: bool,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._buffer = buffer
        self._launch = launch
        self._outcomes = outcomes
        self._fence = fence
        self._limits = limits
        self._in_grid = in_grid  # they rearrange what they have saved
        self._runtime = runtime
        self._client: AgentClient | None = None  # before the start and after the end
        self._deaths = 0  # in a row
        self._arranged = False
        self._unsealed: Unsealed | None = None  # the save in progress, while it leaves its device
        self.has_predecessor = False  # another process served this rank in this term; its agent may be at work

    def start(self, term: int, announce: Callable[[], str | None]) -> None:
        """Start the first agent; ``announce`` writes a lease for it until it is up."""
        self._client = self._started(term, announce)

    @property
    def client(self) -> AgentClient:
        """The current agent, to send it a snapshot."""
        if self._client is None:
            raise SaveFailed("no agent was started")
        return self._client

    @property
    def pid(self) -> int | None:
        """The process id of the current agent; None if it is a thread."""
        return self._client.pid if self._client else None

    @property
    def fence(self) -> Fence:
        """What keeps agents that were given up from committing."""
        return self._fence

    def seal_later(self, unsealed: Unsealed) -> None:
        """The snapshot of the save in progress is taken; seal it when it has left its device."""
        self._unsealed = unsealed

    def poll(self, timeout_s: float = 0.0) -> None:
        """Process what was reported, and go on with a snapshot that leaves its device.

        Raises TakenOver once another trainer owns the run.
        """
        self._go_on()
        if self._client is not None:
            for event in self._client.poll(timeout_s):
                self._on(event)
        if self._outcomes.taken_over is not None:
            raise TakenOver(self._outcomes.taken_over)

    @property
    def is_settled(self) -> bool:
        """Whether ``prepare`` and ``settle`` have nothing to do."""
        fence = self._fence
        unfenced = fence.is_due or fence.is_closing or fence.is_open
        return self._outcomes.in_flight is None and not (unfenced or self.client.is_lost)

    def prepare(self) -> None:
        """Make sure, if possible, that the next save has an agent."""
        if self.client.is_lost:
            self._replaced()
        elif self._fence.is_due:
            self._fence.close(self.client)

    def settle(self, *, cancel: bool = False) -> None:
        """Wait for the outcome of the save in progress: the next one's parent depends on it."""
        in_flight = self._outcomes.in_flight
        if cancel and in_flight is not None:
            self._outcomes.call_off()
            self._cancel()
        what = "the run to be fenced off" if in_flight is None else f"the save of step {in_flight.intent.step}"
        waiting = Wait(what, runtime=self._runtime)
        while self._outcomes.in_flight is not None or self._fence.is_closing:
            self._go_on(wait=True)
            self.poll(_POLL_S)
            waiting.tell(f"{self.client.state}; {self._outcomes.age}")

    def drain(self) -> None:
        """Wait until no save is in progress; raises SaveFailed, or TakenOver, if the last one failed."""
        self.settle()
        if self._outcomes.taken_over is not None:
            raise TakenOver(self._outcomes.taken_over)
        if self._outcomes.failure is not None:
            raise SaveFailed(self._outcomes.failure)

    def arrange(self) -> None:
        """Wait until everything due is rearranged, or until the agent is gone."""
        if self._client is None or not self._in_grid:
            return
        waiting = Wait("increments to be rearranged", runtime=self._runtime)
        deaths = self._outcomes.stats.agent_deaths
        self._arranged = False
        self._client.arrange()
        while not self._arranged and self._outcomes.stats.agent_deaths == deaths and not self._client.is_lost:
            self.poll(_POLL_S)
            waiting.tell(self.client.state)

    def annotate(self, checkpoint: str, metrics: Mapping[str, float]) -> None:
        """Attach metrics to a committed checkpoint. Raises AgentDied if no agent is left to do it."""
        if self._client is None:
            return
        try:
            self._client.annotate(checkpoint, dict(metrics))
        except AgentDied as error:
            self.lost(str(error))
            self._client.annotate(checkpoint, dict(metrics))

    def lost(self, message: str) -> None:
        """An agent died: log it, start another, and let that one find out what became of the save.

        If several die in a row, the next one is started with the next save.
        """
        if (unsealed := self._take_unsealed()) is not None:
            unsealed.forget()
        logger.warning("%s; training continues and another agent is started; %s", message, self._outcomes.age)
        self._outcomes.lose_agent()
        self._deaths += 1
        in_flight = self._outcomes.in_flight
        if in_flight is not None:
            self._fence.doubt(in_flight.intent.checkpoint)
        if self._deaths <= _MAX_DEATHS and self._replaced():
            if in_flight is not None:
                self._outcomes.ask()
        elif in_flight is not None:
            self._outcomes.give_up(
                f"{self._deaths} agents in a row ended before they could commit; the last: {message}"
            )

    def close(self) -> None:
        """Stop the current agent after its work."""
        if self._client is None:
            return
        self._go_on(wait=True)  # a loop that was left by an error has taken its last snapshot, all the same
        client, self._client = self._client, None
        for event in client.close():
            if isinstance(event, Notice | Lost):
                logger.warning(event.message)

    def _go_on(self, *, wait: bool = False) -> None:
        """Let a snapshot leave its device; one that cannot is given up, and its rows go into the next one."""
        if self._unsealed is None:
            return
        try:
            if self._unsealed.advance(wait=wait):
                self._unsealed = None
        except AgentDied as error:
            self.lost(str(error))
        except Exception as error:
            self._outcomes.throw_away(str(error))
            self._cancel()

    def _cancel(self) -> None:
        if (unsealed := self._take_unsealed()) is not None:
            unsealed.abandon()
        else:
            self.client.cancel()

    def _take_unsealed(self) -> Unsealed | None:
        unsealed, self._unsealed = self._unsealed, None
        return unsealed

    def _on(self, event: AgentEvent) -> None:
        match event:
            case Committed():
                self._committed(event)
            case GridNews():
                self._outcomes.arranged(GridStats(**event.stats))
                self._arranged = self._arranged or event.settled
            case Failed():
                self._failed(event)
            case Lost():
                self.lost(event.message)
            case Raised():
                self._raised(event)
            case Notice():
                logger.warning(event.message)

    def _committed(self, event: Committed) -> None:
        info = Entry.from_json(event.entry).info
        self._fence.resolved(info.id)
        if self._outcomes.awaited(info.id) is not None:
            self._deaths = 0
            self._outcomes.committed(info, event.state)

    def _failed(self, event: Failed) -> None:
        if not event.unknown:
            self._fence.resolved(event.checkpoint)
        in_flight = self._outcomes.awaited(event.checkpoint)
        if in_flight is None:
            return
        problem = f"{event.error}: {event.message}"
        if event.unknown and not in_flight.asked:
            logger.warning(
                "it is unknown whether checkpoint %s was committed (%s); asking", event.checkpoint, event.message
            )
            self._ask(in_flight, problem)
            return
        if event.error == TakenOver.__name__:
            self._outcomes.lose_run(event.message)
        if event.error == BaseDropped.__name__:
            self._outcomes.drop_baseline()
        self._outcomes.give_up(in_flight.problem or problem, elsewhere=event.error == SaveCancelled.__name__)

    def _raised(self, event: Raised) -> None:
        """The agent that raised the term makes way for one of the new term."""
        self._fence.closed(event.problem)
        if event.taken_over:
            self._outcomes.lose_run(event.problem)
        if event.term is None:
            logger.warning("an agent that cannot be killed has not been fenced off yet: %s", event.problem)
            return
        self._outcomes.raise_term(event.term)
        for last in self.client.close():
            if isinstance(last, Notice):
                logger.warning(last.message)
        with suppress(OSError):  # then the next save tries it again, and says so
            self._client = self._started(event.term)

    def _started(self, term: int, announce: Callable[[], str | None] | None = None) -> AgentClient:
        alone = self._fence.is_clear and not self.has_predecessor
        agent = self._launch(term, alone=alone, announce=announce)
        return AgentClient(self._buffer, agent, self._limits, runtime=self._runtime)

    def _replaced(self) -> bool:
        """Whether another agent is running; it is first asked about all saves with an unknown outcome."""
        try:
            self._fence.leave_behind(self.client)
            self.client.close()
            self._client = self._started(self._outcomes.position.term)
        except (OSError, ConfigurationError) as error:
            logger.warning("another agent could not be started: %s", error)
            return False
        self._fence.close(self._client)
        return True

    def _ask(self, in_flight: InFlight, problem: str) -> None:
        """Ask about a save whose outcome is unknown.

        If the answer does not settle it, the save counts as failed. That is safe even if the commit turns up later: the
        next save builds on the same parent and holds the same rows and more.
        """
        self._outcomes.ask(problem)
        self.client.resolve(in_flight.intent.checkpoint)
