"""Any process of a job may be killed or stopped at any step, and what the others hold stays as it is."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.cluster.happenings import Replaced
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, newest_saved, saved_at_end

SERVERS = 3
EVERY = 20  # steps between two saves


class Struck:
    """A job of one worker, and what it has to come to."""

    def __init__(self, job: RunningJob) -> None:
        self.job = job
        self.twin = Twin(Recipe(servers=SERVERS))
        self.has_pulled = True  # the worker that there is now

    def save(self, step: int, killing_agent_of: int | None = None) -> None:
        """Reach a step at which a save is due; it is committed, even if an agent dies over it."""
        self.job.run_to(step)
        self.has_pulled = True
        if killing_agent_of is not None:
            self.job.agent(killing_agent_of).kill()
        self.job.saved(step)

    def run_to(self, step: int) -> None:
        self.job.run_to(step)
        self.has_pulled = True

    def strike(self, name: str, how: signal.Signals) -> None:
        """Kill or stop a member that has nothing to do, and wait until another has its place."""
        role, _, index = name.partition("-")
        held = self.job.gate.held()
        assert held is not None
        self.twin.run_to(held["step"])
        saved = newest_saved(self.job.url, self.twin.recipe, int(index))[0] if role == "server" else None
        count = len(self.job.of(Replaced))
        self.job.kill(name, how)
        self.job.wait_for(Replaced, count + 1)
        if saved is not None:
            self.twin.lose(saved, knows_dense=self.has_pulled)
            return
        self.job.until(lambda: (found := self.job.gate.held()) is not None and found["pid"] != held["pid"])
        self.has_pulled = False

    def assert_as_expected(self, step: int) -> None:
        """At the end, what was saved is what everyone had."""
        self.job.finish(step)
        self.twin.run_to(step)
        assert_same(saved_at_end(self.job.url, self.twin.recipe), self.twin.values())
        assert hf.open_run(self.job.url).verify() == []
        self.job.assert_nothing_is_left()


def strikes(seed: int, count: int) -> list[tuple[str, signal.Signals]]:
    """Who is hit, and how: everyone once in a while, some of them only stopped."""
    draw = random.Random(seed)
    names = [f"server-{index}" for index in range(SERVERS)] + ["worker-0", "agent-0", "agent-1", "worker-0"]
    return [(draw.choice(names), draw.choice([signal.SIGKILL] * 3 + [signal.SIGSTOP])) for _ in range(count)]


def strike_all(job: RunningJob, plan: list[tuple[str, signal.Signals]], draw: random.Random) -> None:
    struck = Struck(job)
    step = 0
    for name, how in plan:
        step = (step // EVERY + 1) * EVERY
        is_agent = name.startswith("agent")
        struck.save(step, killing_agent_of=int(name.partition("-")[2]) if is_agent else None)
        if not is_agent:
            step += draw.randrange(EVERY)
            struck.run_to(step)
            struck.strike(name, how)
    struck.assert_as_expected(step + 2)


def test_eight_members_are_killed_or_stopped_and_the_rest_stays_bit_for_bit(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(servers=SERVERS, save=hf.EverySteps(EVERY), silence_s=4.0)
    plan = [
        ("server-1", signal.SIGKILL),
        ("worker-0", signal.SIGKILL),
        ("server-0", signal.SIGKILL),
        ("agent-1", signal.SIGKILL),
        ("server-2", signal.SIGSTOP),
        ("agent-0", signal.SIGKILL),
        ("worker-0", signal.SIGSTOP),
        ("server-0", signal.SIGKILL),
    ]
    strike_all(job, plan, random.Random(0))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_five_random_strikes_leave_the_rest_bit_for_bit(seed: int, start_job: Callable[..., RunningJob]) -> None:
    job = start_job(servers=SERVERS, save=hf.EverySteps(EVERY), silence_s=4.0, spares=seed % 2)
    strike_all(job, strikes(seed, 25), random.Random(seed))


@pytest.mark.slow
def test_a_server_that_dies_before_the_new_worker_s_first_pull_keeps_its_saved_dense_part(
    start_job: Callable[..., RunningJob],
) -> None:
    struck = Struck(start_job(servers=SERVERS, save=hf.EverySteps(EVERY)))
    struck.save(EVERY)
    struck.strike("worker-0", signal.SIGKILL)
    struck.strike("server-0", signal.SIGKILL)
    struck.assert_as_expected(EVERY + 2)
