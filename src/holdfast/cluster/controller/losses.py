"""What partial recoveries have cost: steps that new servers' rows lack, and the portion of lost samples (PLS)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.cluster.core.members import Member
from holdfast.policy import PLS
from holdfast.policy.ladder import Fall
from holdfast.policy.pls import PlsMeter

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Of a training, as far as workers have told.

    Args:
        step: Where it is.
        samples_per_step: On the average. None: not known yet.
        samples: Of all of it. None: not known.
    """

    step: int
    samples_per_step: float | None
    samples: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a recovery cost besides time: steps that rows lack, or that everyone takes again."""

    steps: int = 0
    samples: float | None = 0.0  # of these steps; None: not known
    pls: float | None = 0.0  # that it added; None: not metered


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Of one server's rows."""

    server: Member
    cost: Cost
    pls: float | None  # of the whole training so far; None: not metered


@dataclass(slots=True)
class _Told:
    steps: int = 0
    workers: set[int] = field(default_factory=set)  # that have told


class Losses:
    """Meters by equation 3 of CPR: each of N servers holds 1/N of the tables.

    A server loses a step of each worker, because each push is one: so the steps that it lost are those of all workers.
    They count from the newest checkpoint, as CPR's do, and not from a priority save, which holds a few rows only.

    Args:
        budget: Of the strategy. None: steps are told, a portion is not.
        servers: How many there are.
        stored: The meter of the checkpoint that the job begins with.
        step: Of that checkpoint.
    """

    def __init__(
        self, budget: PLS | None, *, servers: int, stored: Mapping[str, Any] | None = None, step: int = 0
    ) -> None:
        self._budget = budget
        self._servers = servers
        self._pls = float((stored or {}).get("pls") or 0.0)
        self._failures = int((stored or {}).get("failures") or 0)
        self._told: dict[Member, _Told] = {}
        self._at = {0: (self._pls, self._failures)}  # by save
        self._steps: dict[int, int] = {}  # by save that is not committed
        self._saved_step = step  # of the newest checkpoint
        self._is_current = True  # what was saved last belongs to this timeline

    @property
    def pls(self) -> float | None:
        """The portion of lost samples by now; None: not metered."""
        return None if self._budget is None else self._pls

    def hear(self, server: Member, worker: int, pushes: int) -> None:
        """So many pushes of one more worker are lost, or none."""
        told = self._told.setdefault(server, _Told())
        told.steps += pushes
        told.workers.add(worker)

    def forget(self, server: Member) -> None:
        """It died before all workers had turned to it: they turn to its successor, and all of it is told again."""
        self._told.pop(server, None)

    def settle(self, length: Length, *, workers: int, at_once: bool = False) -> list[Loss]:
        """Losses of which so many workers, all there are, have told by now; or as many as did."""
        if self._budget is not None and self._total(length) is None:
            return []
        ready = [server for server, told in self._told.items() if at_once or len(told.workers) >= workers]
        return [self._settle(server, self._told.pop(server).steps, length) for server in ready]

    def since_checkpoint(self, length: Length) -> Cost:
        """What the death of a server costs, if nobody is left to say it more exactly."""
        steps = max(0, length.step - self._saved_step)
        return Cost(steps=steps, samples=self.samples_of(steps, length), pls=None)

    def samples_of(self, steps: int, length: Length) -> float | None:
        """How many samples steps are of: by the number that the portion is metered with, as far as one is known."""
        told = None if self._budget is None else self._budget.samples_per_step
        per_step = told or length.samples_per_step
        return None if per_step is None else float(steps * per_step)

    def fall(self, lost_servers: int, length: Length) -> Fall:
        """What it would mean to set rows of so many servers back to what was saved last."""
        meter = self._meter(length)
        samples = meter.saved_samples if meter is not None else 0
        if meter is not None:
            saved = min(samples, round(self._saved_step * self._per_step(length)))
            meter = replace(meter, saved_samples=saved)
        return Fall(
            lost_share=min(1.0, lost_servers / self._servers),
            samples=samples,
            meter=meter,
            saves_are_current=self._is_current,
        )

    def state(self, length: Length) -> Mapping[str, float | None] | None:
        """The meter, as a checkpoint at this step stores it; None where there is none, or nothing known to meter by."""
        meter = self._meter(length)
        return None if meter is None else meter.to_dict()

    def saved(self, save: int, step: int) -> None:
        """What is known now belongs to this save, of this step."""
        self._at[save] = (self._pls, self._failures)
        self._steps[save] = step

    def committed(self, save: int) -> None:
        """Nobody goes back further."""
        self._at = {number: each for number, each in self._at.items() if number >= save}
        self._saved_step = self._steps.get(save, self._saved_step)
        self._steps = {number: each for number, each in self._steps.items() if number > save}
        self._is_current = True

    def went_back(self, save: int) -> None:
        """Everyone did, and what was lost after that save is trained again."""
        self._pls, self._failures = self._at.get(save, (0.0, 0))
        self._told.clear()
        self._is_current = False

    def _settle(self, server: Member, steps: int, length: Length) -> Loss:
        meter, samples = self._meter(length), self.samples_of(steps, length)
        if meter is None:
            return Loss(server=server, cost=Cost(steps=steps, samples=samples, pls=None), pls=None)
        now = meter.saved_samples
        before = replace(meter, saved_samples=max(0, now - round(steps * self._per_step(length))))
        after = before.failed(now, lost_share=1 / self._servers)
        self._pls, self._failures = after.pls, after.failures
        if after.warning is not None:
            logger.warning(after.warning)
        cost = Cost(steps=steps, samples=samples, pls=after.pls - before.pls)
        return Loss(server=server, cost=cost, pls=after.pls)

    def _meter(self, length: Length) -> PlsMeter | None:
        """As of now: everything is saved."""
        total = self._total(length)
        if self._budget is None or total is None:
            return None
        now = round(length.step * self._per_step(length))
        return PlsMeter(
            total_samples=max(1, round(total), now),  # of a training that is longer than was said if it is
            pls=self._pls,
            saved_samples=now,
            failures=self._failures,
            budget=self._budget.budget,
            warn_at=self._budget.warn_at,
        )

    def _total(self, length: Length) -> float | None:
        if self._budget is None or (length.samples_per_step is None and self._budget.samples_per_step is None):
            return None
        return self._budget.total_samples or length.samples

    def _per_step(self, length: Length) -> float:
        assert self._budget is not None
        return float(self._budget.samples_per_step or length.samples_per_step or 1)
