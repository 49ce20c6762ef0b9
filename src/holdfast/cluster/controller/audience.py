"""Whoever hears what happens to a job: the user's function, the live view or the log, the record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from holdfast.cluster.controller.words import describe
from holdfast.cluster.happenings import Died, Event, ResizeFailed, SaveFailed, SpareFailed

logger = logging.getLogger("holdfast")

Listener: TypeAlias = Callable[[Event], object]


class Hook:
    """A function of the user's. That it raises is logged once, and changes nothing.

    Args:
        name: The argument that it came by.
        function: It.
    """

    def __init__(self, name: str, function: Callable[[Any], object]) -> None:
        self._name = name
        self._function = function
        self._is_told_broken = False

    def call(self, value: object) -> None:
        """Hand a value on."""
        try:
            self._function(value)
        except Exception:
            self._tell_broken()

    def _tell_broken(self) -> None:
        if not self._is_told_broken:
            self._is_told_broken = True
            logger.warning(
                "the hook %s=%s raised; training continues, and further errors from it are not logged",
                self._name,
                getattr(self._function, "__qualname__", type(self._function).__qualname__),
                exc_info=True,
            )


class Audience:
    """Hands every event on, first to our own listeners.

    Args:
        hook: The user's.
        listeners: Ours.
    """

    def __init__(self, hook: Listener | None, listeners: Sequence[Listener]) -> None:
        self._hook = Hook("on_event", hook) if hook is not None else None
        self._listeners = listeners

    def tell(self, event: Event) -> None:
        """Something happened."""
        for listener in self._listeners:
            listener(event)
        if self._hook is not None:
            self._hook.call(event)


def log(event: Event) -> None:
    """Where nothing is shown, events are logged."""
    level = logging.WARNING if isinstance(event, Died | SaveFailed | SpareFailed | ResizeFailed) else logging.INFO
    logger.log(level, "%s", describe(event))
