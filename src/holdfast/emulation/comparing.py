"""Every way to recover, side by side: the same trainings and failures for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.emulation.emulating import OnStep, charged, emulate, undisturbed
from holdfast.emulation.training import Training
from holdfast.emulation.ways import Way
from holdfast.errors import ConfigurationError
from holdfast.planner import FailureSchedule, Recovery
from holdfast.planner.emulated import EmulatedJob, EmulatedRun, EmulatedStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is compared. ``build`` gives the training of a seed at its start, the same every time."""

    build: Callable[[int], Training]
    steps: int
    ways: Sequence[Way]
    schedules: Mapping[int, FailureSchedule]  # by seed

    def __post_init__(self) -> None:
        if not self.ways or not self.schedules:
            raise ConfigurationError("Contest: pass at least one way to recover and one seed with its failures")
        for way in self.ways:  # what cannot be emulated is said now, not after the trainings before it
            for schedule in self.schedules.values():
                way.emulation(schedule, self.steps)

    @property
    def trained_steps(self) -> int:
        """Steps that ``hold`` trains, for a progress bar."""
        trained = sum(way.recovery is not Recovery.FULL for way in self.ways)
        return len(self.schedules) * (1 + trained) * self.steps

    def hold(self, title: str, *, pls_budget: float | None = None, on_step: OnStep = lambda: None) -> EmulatedJob:
        """Train every way to recover with every seed."""
        plain = {seed: undisturbed(self.build(seed), on_step) for seed in self.schedules}
        strategies = tuple(self._strategy(way, plain, on_step) for way in self.ways)
        first = next(iter(self.schedules.values()))
        return EmulatedJob(
            title=title,
            total_s=first.total_s,
            servers=first.servers,
            pls_budget=pls_budget,
            strategies=strategies,
        )

    def _strategy(self, way: Way, plain: Mapping[int, float], on_step: OnStep) -> EmulatedStrategy:
        runs = tuple(self._run(way, seed, auc, on_step) for seed, auc in plain.items())
        return EmulatedStrategy(name=way.name, recovery=way.recovery, interval_s=way.interval_s, runs=runs)

    def _run(self, way: Way, seed: int, plain_auc: float, on_step: OnStep) -> EmulatedRun:
        schedule = self.schedules[seed]
        emulation = way.emulation(schedule, self.steps)
        if way.recovery is Recovery.FULL:  # it ends where nothing happened: not trained twice
            outcome, auc = charged(emulation), plain_auc
        else:
            outcome = emulate(self.build(seed), emulation, way.priority, on_step)
            auc = plain_auc if outcome.auc is None else outcome.auc
        return EmulatedRun(
            seed=seed,
            overheads=outcome.overheads,
            failures=schedule.failures,
            pls=outcome.pls,
            auc=auc,
            auc_drop=plain_auc - auc,
        )
