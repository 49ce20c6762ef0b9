"""Members of a protected job are killed at any moment of it, while it trains."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import holdfast as hf
from holdfast.cluster.core.members import Role
from holdfast.cluster.happenings import Died, LostSamples, Paused, Recovered, Redundant, Replaced, WentBack
from holdfast.cluster.parity.seats import seats
from tests.cluster.processes import tally, wide
from tests.cluster.processes.audit import lacking_rows, wrong_rows
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end

Start = Callable[..., RunningJob]
PARITY = hf.Parity(data=2, parity=1, domain="process", rebuild="fast")
SERVERS = 3
_SETTINGS: dict[str, Any] = {
    "parity": PARITY,
    "servers": SERVERS,
    "spares": 1,
    "save": hf.EverySteps(20),
}
_STEPS = 10  # from one strike to the next
_STEP_S = 0.01
_RECOVERY_S = 0.3  # that a recovery takes, about


class Storm:
    """A job that is struck.

    Args:
        job: One with parity.
        recipe: What it trains.
        parity: Which parity it has.
        seed: Of the moments at which members are struck.
        in_step: Whether it trains in step.
    """

    def __init__(
        self, job: RunningJob, recipe: Recipe, parity: hf.Parity, *, seed: int = 0, in_step: bool = False
    ) -> None:
        self.job = job
        self.recipe = recipe
        self._parity = parity
        self._in_step = in_step
        self._draw = random.Random(seed)
        self._limit = 0

    def strike(self, *names: str) -> None:
        """Kill members, all at one moment in one of the next steps. Whoever came last has ended a step by then."""
        moment = self._limit + self._draw.randrange(2, _STEPS - 1)
        self._limit += _STEPS
        self.job.gate.open(self._limit, step_s=_STEP_S)
        self.job.until(lambda: self.job.gate.at() >= moment)
        time.sleep(self._draw.uniform(0, 2 * _STEP_S))
        self.kill(*names)

    def strike_all(self, names: Iterable[str]) -> None:
        """One after another, each when all is protected."""
        for name in names:
            self.settle()
            self.strike(name)

    def kill(self, *names: str) -> None:
        """Kill members now: those that go first are stopped until the last one is hit."""
        self.job.look()
        victims = [self.job.process(name) for name in names]
        deaths = len(self.job.of(Died))
        for victim in victims[:-1]:
            victim.suspend()
        for victim in reversed(victims):
            self.job.hit(victim)
        self.job.until(lambda: len(self.job.of(Died)) >= deaths + len(victims))

    def kill_in_recovery(self, *names: str) -> None:
        """Kill members while somebody gets a struck server's rows, or has just got them."""
        self.job.until(lambda: all(self.job.find(name) for name in names))
        time.sleep(self._draw.uniform(0, _RECOVERY_S))
        self.kill(*names)

    def kill_spare(self) -> None:
        """Kill a server that waits for a place."""
        self.job.until(self.job.spare)
        spare = self.job.spare()
        assert spare is not None
        self.job.hit(spare)

    def settle(self) -> None:
        """Wait until all places are taken, and every row is protected again."""
        self.job.until(self._is_settled)

    def finish(self) -> int:
        """Train to the end, a few steps on, when all is protected; the last step."""
        return self._finish(self._limit + 2)

    def finish_epoch(self) -> int:
        """The same, to the end of an epoch of what counts pushes; how many there were."""
        return self._finish((self._limit // tally.EPOCH + 1) * tally.EPOCH) // tally.EPOCH

    def _finish(self, step: int) -> int:
        self.settle()
        self.job.finish(step)
        return step

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
        """Of all parities, whenever a save was copied; at the end none is missing."""
        placement = self.recipe.placement()
        (ring,) = seats(self._parity, ["here"] * self.recipe.servers).rings
        saves = [each.save for each in self.job.of(Paused)]
        assert lacking_rows(self.job.gate.folder, saves[-1], placement, ring) == 0
        folder, in_step = self.job.gate.folder, self._in_step
        return sum(wrong_rows(folder, save, placement, ring, in_step=in_step) for save in saves)

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


def in_step(start_job: Start, *, workers: int = 1, seed: int = 0, **options: Any) -> Storm:
    """Synchronous training, of which it is known to the bit what it comes to."""
    settings = {**_SETTINGS, **options}
    job = start_job(**wide.JOB, workers=workers, synchronous=True, **settings)
    recipe = wide.recipe(workers=workers, servers=settings["servers"])
    return Storm(job, recipe, settings["parity"], seed=seed, in_step=True)


def counted(start_job: Start, *, seed: int = 0, **options: Any) -> Storm:
    """Asynchronous training that counts its pushes."""
    settings = {**_SETTINGS, **options}
    job = start_job(**tally.JOB, **settings)
    return Storm(job, tally.recipe(servers=settings["servers"]), settings["parity"], seed=seed)


def assert_as_undisturbed(storm: Storm) -> None:
    """A training in step ends with the model of one process that nobody struck."""
    last = storm.finish()
    twin = Twin(storm.recipe)
    twin.run_to(last)
    assert_same(saved_at_end(storm.job.url, storm.recipe), twin.values())
    assert_sound(storm)


def assert_counted_once(storm: Storm) -> None:
    """Each sample's pushes count, and none counts twice."""
    epochs = storm.finish_epoch()
    assert tally.rows_counted(storm.job.url, storm.recipe) == {epochs}
    assert tally.pushes_counted(storm.job.url, storm.recipe) == {epochs * tally.EPOCH * tally.WORKERS}
    assert_sound(storm)


def assert_sound(storm: Storm) -> None:
    """No parity is wrong, no checkpoint, and nothing is left behind."""
    assert storm.wrong_rows() == 0
    assert hf.open_run(storm.job.url).verify() == []
    storm.job.assert_nothing_is_left()
