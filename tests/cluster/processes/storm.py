"""Members of a protected job are killed at any moment of it, while it trains."""

from __future__ import annotations

import random
import time

import psutil

import holdfast as hf
from holdfast.cluster.core.members import Role
from holdfast.cluster.happenings import Died, LostSamples, Paused, Recovered, Redundant, Replaced, WentBack
from holdfast.cluster.parity.seats import seats
from tests.cluster.processes.audit import lacking_rows, wrong_rows
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe

PARITY = hf.Parity(data=2, parity=1, domain="process", rebuild="fast")
SERVERS = 3
_STEPS = 10  # from one strike to the next
_STEP_S = 0.01


class Storm:
    """A job that is struck.

    Args:
        job: Its servers are audited.
        recipe: What it trains.
        seed: Of the moments at which members are struck.
    """

    def __init__(self, job: RunningJob, recipe: Recipe, *, seed: int = 0) -> None:
        self.job = job
        self.recipe = recipe
        self._draw = random.Random(seed)
        self._limit = 0

    def strike(self, *names: str) -> None:
        """Kill members, all at one moment in one of the next steps."""
        begun = self._limit
        self._limit += _STEPS
        self.job.gate.open(self._limit, step_s=_STEP_S)
        moment = begun + self._draw.randrange(_STEPS - 1)
        self.job.until(lambda: self.job.gate.at() >= moment)
        time.sleep(self._draw.uniform(0, 2 * _STEP_S))
        self.kill(*names)

    def kill(self, *names: str) -> None:
        """Kill members now: those that go first are stopped until the last one is hit."""
        self.job.look()
        victims = [self.job.process(name) for name in names]
        deaths = len(self.job.of(Died))
        for victim in victims[:-1]:
            victim.suspend()
        for victim in reversed(victims):
            victim.kill()
        self.job.until(lambda: len(self.job.of(Died)) >= deaths + len(victims))

    def successor(self, name: str) -> psutil.Process:
        """Whoever has a place from which somebody was just struck, as soon as it has it."""
        self.job.until(lambda: self.job.find(name) is not None)
        return self.job.process(name)

    def settle(self) -> None:
        """Wait until all places are taken, and every row is protected again."""
        self.job.until(self._is_settled)

    def finish(self, steps: int | None = None) -> int:
        """Train to the end: up to this step, or a few steps on; the last one."""
        self.settle()
        last = self._limit + 2 if steps is None else steps
        self.job.finish(last)
        return last

    @property
    def next_step(self) -> int:
        """At which nothing is bound to happen yet."""
        return self._limit

    @property
    def rungs(self) -> list[str]:
        """By which deaths of servers were made up for, in their order."""
        return [each.rung for each in self.job.of(Recovered)]

    @property
    def lost_steps(self) -> int:
        """What was told to be lost."""
        return sum(each.steps for each in self.job.of(LostSamples))

    @property
    def has_gone_back(self) -> bool:
        return bool(self.job.of(WentBack))

    def wrong_rows(self) -> int:
        """Of all parities, whenever nothing was in flight; at the end none is missing."""
        placement = self.recipe.placement()
        (ring,) = seats(PARITY, ["here"] * self.recipe.servers).rings
        saves = [each.save for each in self.job.of(Paused)]
        assert lacking_rows(self.job.gate.folder, saves[-1], placement, ring) == 0
        return sum(wrong_rows(self.job.gate.folder, save, placement, ring) for save in saves)

    def _is_settled(self) -> bool:
        died = self._last(Died)
        died_server = self._last(Died, Role.SERVER)
        return self._last(Replaced) >= died and self._last(Redundant) > max(died_server, self._last(WentBack))

    def _last(self, kind: type, role: Role | None = None) -> int:
        """The number of the last such event; -1 where there was none."""
        found = [
            number
            for number, each in enumerate(list(self.job.events))
            if isinstance(each, kind) and (role is None or each.member.role is role)
        ]
        return found[-1] if found else -1
