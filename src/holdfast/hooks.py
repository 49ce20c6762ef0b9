"""Hooks: user functions called with what happened to a training, after the fact and on the training thread."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.events import Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken, TrainingEvent

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """One function, or none, for each type of event; what it returns is ignored."""

    on_save: Callable[[SnapshotTaken], object] | None = None
    on_commit: Callable[[SaveCommitted], object] | None = None
    on_failure: Callable[[SaveGivenUp], object] | None = None
    on_recover: Callable[[Recovery], object] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            hook = getattr(self, each.name)
            if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
                raise ConfigurationError(
                    f"{each.name}={hook!r} is not valid; pass a plain function that takes one event"
                )

    def of(self, event: TrainingEvent) -> tuple[str, Callable[[Any], object] | None]:
        """The argument that a hook for such events is given by, and the hook."""
        match event:
            case SnapshotTaken():
                return "on_save", self.on_save
            case SaveCommitted():
                return "on_commit", self.on_commit
            case SaveGivenUp():
                return "on_failure", self.on_failure
            case Recovery():
                return "on_recover", self.on_recover


class EventQueue:
    """Keeps events until a call of the Checkpointer is about to return: a hook finds it between two calls.

    ``with queue:`` around the body of such a call hands them over at its end, also if it raises. Calls that a hook
    makes add their events at the end of the queue.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._waiting: deque[TrainingEvent] = deque()
        self._depth = 0
        self._broken: set[str] = set()  # hooks that have raised: said once each

    def tell(self, event: TrainingEvent) -> None:
        """Queue an event for the hooks."""
        self._waiting.append(event)

    def deliver(self) -> None:
        """Call the hooks, oldest event first."""
        while self._waiting:
            event = self._waiting.popleft()
            name, hook = self._hooks.of(event)
            if hook is None:
                continue
            try:
                hook(event)
            except Exception:
                self._tell_broken(name, hook)

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._depth == 1:
                self.deliver()
        finally:
            self._depth -= 1

    def _tell_broken(self, name: str, hook: Callable[[Any], object]) -> None:
        if name in self._broken:
            return
        self._broken.add(name)
        called = getattr(hook, "__qualname__", type(hook).__qualname__)
        logger.warning(
            "the hook %s=%s raised; training continues, and further errors from it are not logged",
            name,
            called,
            exc_info=True,
        )
