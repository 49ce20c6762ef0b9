"""Full recovery in the same job: a server's death sends everyone back to the last checkpoint, and no step is lost."""

from __future__ import annotations

from collections.abc import Callable

import holdfast as hf
from holdfast.cluster.happenings import Committed, Started, WentBack
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
    job.kill("server-1")
    job.until(lambda: len(job.of(WentBack)) == 2)
    job.run_to(20)
    assert (job.process("server-2").pid, job.process("worker-0").pid) == before  # processes stay
    job.saved(20)
    job.gate.open(60, step_s=0.02)
    job.until(lambda: job.gate.at() > 24)
    job.kill("worker-1")  # a worker and a server in one step
    job.kill("server-2")
    job.finish(60)
    first, second, *_ = job.of(WentBack)
    assert (first.checkpoint, first.lost_steps) == ("", 3)
    assert (second.checkpoint, second.lost_steps) == (job.of(Committed)[0].checkpoint, 4)
    twin = Twin(recipe)
    twin.run_to(60)
    assert_same(saved_at_end(job.url, recipe), twin.values())
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()
    assert job.of(Started)
