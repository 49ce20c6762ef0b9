"""Exporter: hands what happens to a backend, and never disturbs training."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.integrations.metrics.instruments import Measurement
from holdfast.integrations.metrics.measuring import Measurable, measured

logger = logging.getLogger("holdfast")


class Exporter(ABC):
    """Records metrics: ``hf.Checkpointer(..., **exporter.hooks)``, ``hf.Cluster(..., **exporter.cluster_hooks)``.

    A backend that fails is logged once. Training continues, and what follows is tried again.
    """

    def __init__(self) -> None:
        self._told = False

    @property
    def hooks(self) -> dict[str, Callable[[Any], object]]:
        """The four hooks of a ``Checkpointer`` or a ``Guard``, as keyword arguments."""
        return dict.fromkeys(("on_save", "on_commit", "on_failure", "on_recover"), self.record)

    @property
    def cluster_hooks(self) -> dict[str, Callable[[Any], object]]:
        """The two hooks of a ``Cluster``, as keyword arguments."""
        return dict.fromkeys(("on_event", "on_progress"), self.record)

    def record(self, event: Measurable) -> None:
        """Record an event. Call it from your own hooks if you have some.

        Args:
            event: What a hook of a ``Checkpointer`` or of a ``Cluster`` received.
        """
        for measurement in measured(event):
            try:
                self._add(measurement)
            except Exception:
                self._tell()

    @abstractmethod
    def _add(self, measurement: Measurement) -> None:
        """Hand it to the backend; may raise anything."""

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "%s could not record a metric; training continues, and further errors are not logged",
                type(self).__name__,
                exc_info=True,
            )


def needed(package: str, *, extra: str, of: str) -> Any:
    """An optional package; raises ConfigurationError with the extra that brings it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigurationError(f"{of} needs {package.split('.')[0]}: pip install 'holdfast[{extra}]'") from error
