"""Keeps agents that were given up from committing anything late.

An agent that was killed and reaped commits nothing. One that cannot be killed, because it is blocked in the kernel, may
continue at any time: it has our term, and it maps our frames. Three measures keep it out. Its frames stay untouched,
because the trainer takes a new buffer. The save it was working on is committed or cancelled by its successor before
anything else. And the run's term is raised, if this trainer is the only rank: others would be fenced off with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.checkpoint.trainer.agent_client import AgentClient

logger = logging.getLogger("holdfast")

_MOST_LEFT_BEHIND = 2  # each keeps a buffer; more of them, and it is the store that hangs


class Fence:
    """What the next agent has to do before it saves. ``renew_buffer`` takes new memory for snapshots."""

    def __init__(self, renew_buffer: Callable[[], None], *, raises_term: bool) -> None:
        self._renew_buffer = renew_buffer
        self._raises_term = raises_term
        self._left_behind: list[AgentClient] = []
        self._in_doubt: list[str] = []  # checkpoints
        self._problem = ""
        self.is_open = False  # somebody whom nobody could kill has our term
        self.is_closing = False  # an agent was asked to raise it

    @property
    def problem(self) -> str:
        """Why it is still open."""
        return f"an agent that cannot be killed is not fenced off: {self._problem or 'no agent is left to do it'}"

    @property
    def is_clear(self) -> bool:
        """Whether all agents that were given up are dead."""
        return all(each.has_ended for each in self._left_behind)

    def doubt(self, checkpoint: str) -> None:
        """Nobody knows how this save ended."""
        if checkpoint not in self._in_doubt:
            self._in_doubt.append(checkpoint)

    def resolved(self, checkpoint: str) -> None:
        """It is committed, or never will be."""
        if checkpoint in self._in_doubt:
            self._in_doubt.remove(checkpoint)

    @property
    def is_due(self) -> bool:
        """Whether an agent has something to put in order before the next save."""
        return self.is_open or bool(self._in_doubt)

    def leave_behind(self, agent: AgentClient) -> None:
        """Go on without an agent. Raises OSError while too many are left behind that could not be killed."""
        self.is_closing = False
        self._left_behind = [each for each in self._left_behind if not each.has_ended]
        if agent.has_ended or agent in self._left_behind:
            return
        if len(self._left_behind) >= _MOST_LEFT_BEHIND:
            pids = ", ".join(str(each.pid) for each in (*self._left_behind, agent))
            raise OSError(
                f"processes {pids} cannot be killed: they are blocked in the kernel on storage that does not respond"
            )
        self._renew_buffer()
        self._left_behind.append(agent)
        self.is_open = self._raises_term
        how = "the run's term was raised and" if self._raises_term else "its save was cancelled and"
        logger.warning("the agent (process %s) cannot be killed: %s a new buffer was allocated", agent.pid, how)

    def close(self, agent: AgentClient) -> None:
        """Let an agent put everything in order; first what may still have to be committed under the old term."""
        for checkpoint in self._in_doubt:
            agent.resolve(checkpoint)
        if self.is_open and not self.is_closing:
            self.is_closing = True
            agent.raise_term()

    def closed(self, problem: str) -> None:
        """It answered; ``problem``: why the term was not raised."""
        self.is_closing = False
        self.is_open = bool(problem)
        self._problem = problem
