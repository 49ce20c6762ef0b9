"""Parts of divided tables come back from the newest saved rows; whole models come back without a Checkpointer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import holdfast as hf
from tests.integrations.torchrec.joining import joined
from tests.integrations.torchrec.model import Plan
from tests.integrations.torchrec.test_resume import FOUR, HALVES, ONE, TURNED, TWO, saved
from tests.jobs.arrays import Arrays, assert_same
from tests.jobs.job import Job, Jobs

OF = 4


def rows_of(arrays: Arrays, servers: list[int]) -> dict[str, np.ndarray]:
    """The rows of tables and slots that some of the servers hold."""
    found = {}
    for name, values in arrays.items():
        if "embedding" in name:
            bounds = [len(values) * number // OF for number in range(OF + 1)]
            found[name] = np.concatenate([values[bounds[each] : bounds[each + 1]] for each in servers])
    return found


@pytest.mark.parametrize("strategy", [hf.Consecutive(), hf.Partial(priority=hf.MFU(r=0.5))])
def test_lost_rows_are_those_of_the_last_save_and_all_others_stay(
    jobs: Jobs, tmp_path: Path, strategy: hf.Strategy
) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, TWO, "rowwise", steps=4, every=2, strategy=strategy)
    before = joined(job.call("shadow", step=4))
    job.call("train", steps=2)
    trained = joined(job.call("held"))
    recovered = job.call("recover", servers=[1, 2], of=OF)
    now = joined(job.call("held"))
    assert_same(rows_of(now, [1, 2]), rows_of(before, [1, 2]))
    assert_same(rows_of(now, [0, 3]), rows_of(trained, [0, 3]))
    assert all(recovered) and not all(np.array_equal(trained[name], before[name]) for name in before)
    job.call("save_blindly")  # what was recovered counts as changed
    job.call("build", plan=TWO, optimizer="rowwise", seed=1)
    job.call("guard", url=url, strategy=strategy)
    job.call("resume")
    assert_same(joined(job.call("held")), now)


@pytest.mark.parametrize("optimizers", [True, False])
def test_a_run_is_restored_into_another_plan_and_number_of_ranks(jobs: Jobs, tmp_path: Path, optimizers: bool) -> None:
    url = str(tmp_path / "run")
    saved(jobs.get(2), url, TWO, "adagrad", steps=4, every=2, strategy=hf.Consecutive())
    before = joined(jobs.get(2).call("shadow", step=4))
    for plan in (TURNED, FOUR, ONE) if optimizers else (HALVES,):
        job = restored(jobs, plan, url, optimizers=optimizers)
        now = joined(job.call("held"))
        if not optimizers:  # those of data-parallel tables are none of the model's
            fused = {name for name in now if "momentum1" not in name or "b0" in name}
            assert any("momentum1" in name for name in fused)
            now, expected = ({name: each[name] for name in fused} for each in (now, before))
            assert_same(now, expected)
        else:
            assert_same(now, before)


def restored(jobs: Jobs, plan: Plan, url: str, *, optimizers: bool) -> Job:
    job = jobs.get(plan.world)
    job.call("build", plan=plan, optimizer="adagrad", seed=1)
    assert job.call("restore", url=url, optimizers=optimizers) == [4] * plan.world
    return job
