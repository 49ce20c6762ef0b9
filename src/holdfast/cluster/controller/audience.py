"""Whoever hears what happens to a job: the user's function, the live view or the log, the record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.cluster.controller.words import describe
from holdfast.cluster.happenings import Died, Event, ResizeFailed, SaveFailed

logger = logging.getLogger("holdfast")

Listener: TypeAlias = Callable[[Event], object]


class Audience:
    """Hands every event on, first to our own listeners.

    Args:
        hook: The user's. That it raises is logged once, and changes nothing.
        listeners: Ours.
    """

    def __init__(self, hook: Listener | None, listeners: Sequence[Listener]) -> None:
        self._hook = hook
        self._listeners = listeners
        self._is_told_broken = False

    def tell(self, event: Event) -> None:
        """Something happened."""
        for listener in self._listeners:
            listener(event)
        if self._hook is not None:
            try:
                self._hook(event)
            except Exception:
                self._tell_broken(self._hook)

    def _tell_broken(self, hook: Listener) -> None:
        if not self._is_told_broken:
            self._is_told_broken = True
            called = getattr(hook, "__qualname__", type(hook).__qualname__)
            logger.warning(
                "the hook on_event=%s raised; training continues, and further errors from it are not logged",
                called,
                exc_info=True,
            )


def log(event: Event) -> None:
    """Where nothing is shown, events are logged."""
    level = logging.WARNING if isinstance(event, Died | SaveFailed | ResizeFailed) else logging.INFO
    logger.log(level, "%s", describe(event))
