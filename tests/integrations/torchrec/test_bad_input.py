"""What does not fit is refused before anything is changed, with the table, the sharding type and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchrec.distributed.types import ParameterSharding

import holdfast as hf
from holdfast.integrations.torchrec.collection import _require_kernel
from tests.integrations.torchrec.joining import joined
from tests.integrations.torchrec.model import BAGS, DIM, Plan
from tests.integrations.torchrec.test_resume import ONLY_ROWS, saved
from tests.jobs.arrays import assert_same
from tests.jobs.job import Job, Jobs

ROWS = Plan(bags="rw rw rw tw rw tw rw", sequences="rw rw tw", world=2)


@pytest.fixture
def run(jobs: Jobs, tmp_path: Path) -> tuple[Job, str]:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, ONLY_ROWS, "rowwise", steps=2, every=1)
    return job, url


def refusal(job: Job, name: str, **arguments: Any) -> str:
    """Why all ranks refuse; one of them may only have heard of it."""
    found = job.outcomes(name, **arguments)
    assert all(kind == "failed" for kind, _ in found), found
    return str(max((value for _, value in found), key=lambda value: "another rank" not in value))


def test_a_plan_that_lacks_a_table(run: tuple[Job, str]) -> None:
    job, url = run
    fewer = {name: rows for name, rows in BAGS.items() if name != "b5"}
    plan = Plan(bags="tw rw cw tw rw rw", sequences="tw rw cw", world=2)
    job.call("build", plan=plan, optimizer="rowwise", bags=fewer)
    job.call("guard", url=url)
    assert "tables missing from the model: ['bags.embedding_bags.b5']" in refusal(job, "resume")


def test_a_plan_with_a_table_of_another_name(run: tuple[Job, str]) -> None:
    job, url = run
    renamed = {name.replace("b5", "c5"): rows for name, rows in BAGS.items()}
    job.call("build", plan=ONLY_ROWS, optimizer="rowwise", bags=renamed)
    job.call("guard", url=url)
    why = refusal(job, "resume")
    assert "missing from the checkpoint: ['bags.embedding_bags.c5']" in why
    assert "Rename them, or pass strict=False" in why


def test_another_fused_optimizer(run: tuple[Job, str]) -> None:
    job, url = run
    job.call("build", plan=ONLY_ROWS, optimizer="adagrad")
    job.call("guard", url=url)
    why = refusal(job, "resume")
    assert "saved by RowWiseAdagrad, now Adagrad" in why and "bags.embedding_bags.b0.weight" in why


def test_another_precision(run: tuple[Job, str]) -> None:
    job, url = run
    job.call("build", plan=ONLY_ROWS, optimizer="rowwise", half=(0, 1))
    job.call("guard", url=url)
    assert "is F32 in the checkpoint and F16 in the model" in refusal(job, "resume")


def test_shards_of_mixed_precision(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.get(2)
    job.call("build", plan=ROWS, optimizer="rowwise", half=(1,))
    why = refusal(job, "guard", url=str(tmp_path / "run"))
    assert "shards of table 'bags.embedding_bags.b0' differ: float32 on one rank, float16 on another" in why


def test_an_optimizer_that_holds_fused_tables(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.get(2)
    job.call("build", plan=ROWS, optimizer="sgd")
    why = refusal(job, "guard_with_everything", url=str(tmp_path / "run"))
    assert "Adam holds table 'bags.embedding_bags.b0'" in why and "in_backward_optimizer_filter" in why


def test_partial_recovery_where_columns_were_split_differently(run: tuple[Job, str]) -> None:
    job, url = run
    job.call("build", plan=ROWS, optimizer="sgd")
    job.call("guard", url=url + "-sgd")
    job.call("resume")
    job.call("train", steps=1, save_every=1)
    job.call("build", plan=ONLY_ROWS, optimizer="sgd")
    job.call("guard", url=url + "-sgd")
    job.call("resume")
    why = refusal(job, "recover", servers=[0], of=2)
    assert "does not hold table 'bags.embedding_bags.b2[0:4]'; save again before relying on partial" in why


def test_a_restore_of_a_checkpoint_that_is_not_there(run: tuple[Job, str]) -> None:
    assert "step 77" in refusal(run[0], "restore", url=run[1], step=77)


def test_a_model_that_is_sharded_again(run: tuple[Job, str]) -> None:
    run[0].call("shard_again")
    assert "table 'bags.embedding_bags.b" in (why := refusal(run[0], "save_blindly")) and "sharded again" in why


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching", "key_value", "ssd_virtual_table"])
def test_rows_outside_of_the_devices_memory(kernel: str) -> None:
    sharding = ParameterSharding(sharding_type="row_wise", compute_kernel=kernel, ranks=[0, 1])
    with pytest.raises(hf.errors.ConfigurationError, match=rf"'emb' \(row_wise\) uses .* {kernel!r}, .*UVM, SSD"):
        _require_kernel("emb", sharding)


def test_sums_of_other_column_shards_are_refused_or_told_as_inexact(run: tuple[Job, str]) -> None:
    job, url = run
    before = joined(job.call("shadow", step=2))
    job.call("build", plan=ROWS, optimizer="rowwise", seed=1)
    job.call("guard", url=url)
    why = refusal(job, "resume")
    assert "slot 'sum' of table 'bags.embedding_bags.b2'" in why and "slots='mean'" in why
    told = job.call("warnings_of", what="resume", slots="mean")[0]
    assert any("bags.embedding_bags.b2: slots are restored inexactly" in line for line in told)
    now = joined(job.call("held"))
    assert_same(*({n: v for n, v in each.items() if "momentum1" not in n} for each in (now, before)))
    for table in ("b2", "b5"):
        name = f"bags.embedding_bags.{table}.weight.momentum1"
        halves = (before[f"{name}[{first}]"].astype(np.float64) for first in (0, DIM // 2))
        assert np.allclose(now[f"{name}[0]"], sum(halves) / 2, rtol=1e-6)


def test_learning_rates_come_back_with_the_fused_state(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    job.call("build", plan=ROWS, optimizer="adagrad")
    job.call("guard", url=url)
    job.call("resume")
    job.call("learning_rates", rate=0.125)
    job.call("train", steps=1, save_every=1)
    job.call("build", plan=ROWS, optimizer="adagrad")
    job.call("guard", url=url)
    job.call("resume")
    assert {rate for rates in job.call("learning_rates") for rate in rates} == {0.125}
