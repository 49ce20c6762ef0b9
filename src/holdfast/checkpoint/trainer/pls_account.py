"""Meters what partial recoveries lose, over all restarts of a training (CPR, section 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.policy import PLS
from holdfast.policy.pls import PlsMeter

logger = logging.getLogger("holdfast")


class PlsAccount:
    """The meter of one training; counts samples by steps, because a step's batch is known and its samples are not.

    What is not given is asked of the loader: its batch size, and one pass over its batches. Where the batch size is not
    known either, a step counts as one sample: the portion is the same as long as batches are of one size.
    """

    def __init__(self, budget: PLS, loader: object, world: int) -> None:
        if budget.total_samples and not budget.samples_per_step and not _batch_size(loader):
            raise ConfigurationError(
                f"hf.PLS(total_samples={budget.total_samples}) also needs samples_per_step=...: the loader does not "
                "report its batch size"
            )
        self._samples_per_step = budget.samples_per_step or (_batch_size(loader) or 1) * world
        self._budget = budget
        total = budget.total_samples or _batches(loader) * self._samples_per_step
        self.meter = PlsMeter(total_samples=total, budget=budget.budget, warn_at=budget.warn_at)

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint of this step holds: a resume from it has lost nothing since."""
        return self._at(step).saved(self._samples(step)).to_dict()

    def restore(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Go on from a checkpoint, with the budget and the total of now."""
        if state is not None:
            settings = ("total_samples", "budget", "warn_at")
            now = {name: getattr(self.meter, name) for name in settings}
            self.meter = PlsMeter.from_dict({**state, **now, "saved_samples": 0})
        self.meter = self._at(step).saved(self._samples(step))

    def failed(self, step: int, *, saved_step: int, lost_share: float) -> float:
        """A share of the tables went back from one step to another; the portion lost by now."""
        saved = replace(self._at(step), saved_samples=self._samples(saved_step))
        self.meter = saved.failed(self._samples(step), lost_share=lost_share)
        if self.meter.warning is not None:
            logger.warning(self.meter.warning)
        return self.meter.pls

    def _samples(self, step: int) -> int:
        return step * self._samples_per_step

    def _at(self, step: int) -> PlsMeter:
        """The meter, of a training that is longer than was said if it is."""
        return replace(self.meter, total_samples=max(self.meter.total_samples, self._samples(step)))


def _batch_size(loader: object) -> int | None:
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else None


def _batches(loader: object) -> int:
    try:
        batches = len(loader)  # type: ignore[arg-type]
    except TypeError:
        batches = 0
    if batches <= 0:
        raise ConfigurationError(
            "a PLS budget needs the length of the training, which the loader does not report: pass hf.PLS(0.1, "
            "total_samples=..., samples_per_step=...)"
        )
    return batches
