"""A job may recover partially from one death and fully from the next, as its ladder decides: every push counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.outputs import Output, WentBack
from tests.cluster.core.parity_simulation import ParitySimulation
from tests.cluster.core.simulation import Simulation
from tests.cluster.core.world import Cores

TRAITS: dict[str, Any] = {"synchronous": False, "recovery": Recovery.PARTIAL, "faults": 8}


class Undecided(ControllerCore):
    """Takes either rung, whenever it has the choice; the last one from a going back until the next checkpoint."""

    def __init__(self, view: View, *, seed: int, **modes: Any) -> None:
        super().__init__(view, **modes)
        self._chance = random.Random(seed)
        self._is_current = True  # what was saved last belongs to this timeline

    def died(self, member: Member) -> list[Output]:
        self._choose()
        return self._noted(super().died(member))

    def committed(self, save: int) -> list[Output]:
        self._is_current = True
        return super().committed(save)

    def _climb_down(self, server: Member) -> Iterator[Output]:
        self._choose()
        yield from self._noted(list(super()._climb_down(server)))

    def _choose(self) -> None:
        is_partial = self._is_current and self._chance.random() < 0.6
        self.recovery = Recovery.PARTIAL if is_partial else Recovery.FULL

    def _noted(self, outputs: list[Output]) -> list[Output]:
        if any(isinstance(each, WentBack) for each in outputs):
            self._is_current = False
        return outputs


def play(kind: type[Simulation], seed: int, **traits: Any) -> None:
    cores = Cores(controller=partial(Undecided, seed=seed))
    kind(seed, cores, **TRAITS, **traits).run()


def test_every_push_counts_once_whichever_rung_is_taken() -> None:
    for seed in range(40):
        play(Simulation, seed)
        play(ParitySimulation, seed, parity=1)
        play(ParitySimulation, seed, parity=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_push_counts_once_whichever_rung_is_taken_in_very_many_schedules() -> None:
    for seed in range(40, 2040):
        play(Simulation, seed)
        play(ParitySimulation, seed, parity=1)
        play(ParitySimulation, seed, parity=2)
