"""Members of a job that are killed or stopped, each while it has nothing to do, and what has to come of it."""

from __future__ import annotations

import random
import signal
from contextlib import suppress

import psutil

import holdfast as hf
from holdfast.cluster.happenings import Paused, Replaced
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, newest_saved, saved_at_end

SERVERS = 3
EVERY = 20  # steps between two saves
SETTINGS = hf.Settings(agent_timeout_s=10.0)  # of jobs whose agents are stopped
Strike = tuple[str, signal.Signals]  # who is hit, and how


class Struck:
    """A job of one worker, and what it has to come to."""

    def __init__(self, job: RunningJob, *, servers: int = SERVERS) -> None:
        self.job = job
        self.twin = Twin(Recipe(servers=servers))
        self.has_pulled = True  # the worker that there is now

    def save(self, step: int) -> None:
        """Reach a step at which a save is due, and wait for it."""
        self.run_to(step)
        self.job.saved(step)

    def strike_agent(self, server: int, step: int, how: signal.Signals) -> None:
        """The same, with an agent that ends before it has written its part: the save is taken again."""
        agent = self.job.agent(server)
        agent.suspend()
        self.run_to(step)
        self.job.until(lambda: any(each.step == step for each in self.job.of(Paused)))
        with suppress(psutil.NoSuchProcess):  # on a busy machine its server has given it up by now
            agent.send_signal(how)
        self.job.saved(step)

    def strike_in_save(self, step: int) -> None:
        """Kill server 0, which leads commits, before its agent has written its part: the save is taken again."""
        agent = self.job.agent(0)
        agent.suspend()
        try:
            self.run_to(step)
            self.job.until(lambda: any(each.step == step for each in self.job.of(Paused)))
            self.strike("server-0", signal.SIGKILL)
            self.job.saved(step)
        finally:
            agent.kill()

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


def strikes(seed: int, count: int, *, servers: int = SERVERS) -> list[Strike]:
    """Everyone is hit once in a while, some of them only stopped."""
    draw = random.Random(seed)
    names = [f"server-{index}" for index in range(servers)] + ["worker-0", "agent-0", "agent-1", "worker-0"]
    return [(draw.choice(names), draw.choice([signal.SIGKILL] * 3 + [signal.SIGSTOP])) for _ in range(count)]


def strike_all(struck: Struck, plan: list[Strike], draw: random.Random) -> int:
    """One after another, some steps apart; the last step."""
    step = 0
    for name, how in plan:
        step = (step // EVERY + 1) * EVERY
        if name.startswith("agent"):
            struck.strike_agent(int(name.partition("-")[2]), step, how)
            continue
        struck.save(step)
        step += draw.randrange(EVERY)
        struck.run_to(step)
        struck.strike(name, how)
    return step
