"""Full recovery in the same job: a server's death sends everyone back to the last checkpoint, and no step is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import GoBack, Message
from holdfast.cluster.happenings import Committed, Paused, Started, WentBack
from holdfast.cluster.wire.endpoint import Endpoint
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end


def test_everyone_goes_back_and_comes_to_what_an_undisturbed_run_comes_to(
    start_job: Callable[..., RunningJob],
) -> None:
    recipe = Recipe(workers=2)
    job = start_job(workers=2, spares=1, strategy=hf.Full(), save=hf.EverySteps(10), synchronous=True)
    job.run_to(3)
    job.kill("server-0")  # before the first checkpoint
    job.until(lambda: job.of(WentBack))
    job.run_to(10)
    job.saved(10)
    job.run_to(14)
    before = job.process("server-2").pid, job.process("worker-0").pid
    die_with_news(job, step=20)
    job.until(lambda: len(job.of(WentBack)) == 2)
    job.run_to(22)
    assert (job.process("server-2").pid, job.process("worker-0").pid) == before  # processes stay
    job.wait_for(Committed, 2)
    job.gate.open(60, step_s=0.02)
    job.until(lambda: job.gate.at() > 24)
    job.kill("worker-1")  # a worker and a server in one step
    job.kill("server-2")
    job.finish(60)
    first, second, *_ = job.of(WentBack)
    assert (first.checkpoint, first.lost_steps) == ("", 3)
    assert (second.checkpoint, second.lost_steps) == (job.of(Committed)[0].checkpoint, 10)
    twin = Twin(recipe)
    twin.run_to(60)
    assert_same(saved_at_end(job.url, recipe), twin.values())
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()
    assert job.of(Started)


def test_nobody_is_dismissed_while_a_busy_controller_sends_everyone_back(
    start_job: Callable[..., RunningJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears that it goes back beats at once as its next incarnation: the controller must know it by then."""
    send = Endpoint.send

    def send_and_rest(endpoint: Endpoint, to: Member, message: Message) -> None:
        send(endpoint, to, message)
        if isinstance(message, GoBack):
            time.sleep(1.0)  # as on a busy machine: others run meanwhile

    monkeypatch.setattr(Endpoint, "send", send_and_rest)  # the controller's alone: members are other processes
    job = start_job(strategy=hf.Full(), save=hf.EverySteps(10))
    job.run_to(10)
    job.saved(10)
    job.run_to(12)
    before = [job.process(name).pid for name in ("server-1", "server-2", "worker-0")]
    job.kill("server-0")
    job.until(lambda: job.of(WentBack))
    job.run_to(14)
    assert [job.process(name).pid for name in ("server-1", "server-2", "worker-0")] == before
    job.finish(15)
    assert len(job.of(Started)) == 1  # nobody had to resume
    job.assert_nothing_is_left()


def die_with_news(job: RunningJob, *, step: int) -> None:
    """Server 0 dies when a save is committed and nobody has heard of it."""
    agent = job.agent(0)
    agent.suspend()
    job.run_to(step)
    job.until(lambda: any(each.step == step for each in job.of(Paused)))
    server = job.kill("server-0", signal.SIGSTOP)
    agent.resume()
    job.until(lambda: hf.open_run(job.url).checkpoints()[-1].step == step)
    server.kill()
