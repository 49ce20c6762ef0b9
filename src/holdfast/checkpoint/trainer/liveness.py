"""Whether an agent is alive and what it is waiting for: pings it, warns while it hangs, and gives it up in the end."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from holdfast.checkpoint.trainer.wait import TELL_EVERY_S
from holdfast.checkpoint.wire.messages import Ping, Pong
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

_PING_EVERY_S = 5.0
_LOOKS = 4  # that a silence takes at least to be believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an agent may give no answer, and how long it may wait for a single operation of its store."""

    silent_s: float
    store_s: float


class Liveness:
    """Follows one agent. Its main thread answers, which does no work: a slow store does not keep it from answering.

    Silence counts only while somebody listens, and a quarter of the limit at most from one look to the next: after a
    long step, or when the whole job was stopped for a while, the trainer must not blame its agent.
    """

    def __init__(self, limits: Limits, *, runtime: Runtime = SYSTEM) -> None:
        self._limits = limits
        self._runtime = runtime
        self._asked = self._answered = 0
        self._asked_s = float("-inf")
        self._looked_s = self._told_s = runtime.monotonic_s()
        self._silent_s = 0.0
        self._last = Pong(number=0)

    @property
    def state(self) -> str:
        """What is known of it, for messages."""
        if self._silent_s >= min(TELL_EVERY_S, self._limits.silent_s / 2):
            return f"the agent has not responded for {self._silent_s:.0f} s"
        if self._last.awaits:
            return f"the agent has been waiting {self._last.awaits_s:.0f} s for {self._last.awaits}"
        return "the agent is working"

    def ask(self) -> Ping | None:
        """The next question, if it is time for one and the last was answered."""
        now_s = self._runtime.monotonic_s()
        every_s = min(_PING_EVERY_S, self._limits.silent_s / _LOOKS)
        if self._answered < self._asked or now_s - self._asked_s < every_s:
            return None
        self._asked += 1
        self._asked_s = self._looked_s = now_s
        return Ping(number=self._asked)

    def heard(self, answer: Pong) -> None:
        """The agent responded."""
        self._answered = max(self._answered, answer.number)
        self._silent_s = 0.0
        self._last = answer

    def verdict(self, *, deaf: bool = False) -> str | None:
        """Why the agent is given up, or None; ``deaf``: it does not read. Warns before it comes to that."""
        self._listen(deaf)
        if self._silent_s >= self._limits.silent_s:
            return f"the agent has not responded for {self._silent_s:.0f} s (Settings.agent_timeout_s)"
        if self._last.awaits_s >= self._limits.store_s:
            awaits = f"{self._last.awaits_s:.0f} s for {self._last.awaits}"
            return f"the agent has waited {awaits} (longer than Settings.retry_s and store_timeout_s allow)"
        self._tell()
        return None

    def _listen(self, deaf: bool) -> None:
        now_s = self._runtime.monotonic_s()
        if deaf or self._answered < self._asked:
            self._silent_s += min(now_s - self._looked_s, self._limits.silent_s / _LOOKS)
        else:
            self._silent_s = 0.0
        self._looked_s = now_s

    def _tell(self) -> None:
        now_s = self._runtime.monotonic_s()
        troubled_s, limit_s = max((self._silent_s, self._limits.silent_s), (self._last.awaits_s, self._limits.store_s))
        if troubled_s < TELL_EVERY_S or now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        logger.warning("%s; it will be killed and replaced after %.0f s", self.state, limit_s)
