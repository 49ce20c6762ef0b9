"""What of DTensors cannot be saved or restored is refused by name, with a way out, on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from tests.jobs.job import Jobs
from tests.session.sharded.test_meshes import saved


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("partial", ["'weight'", "Partial(sum)", "Redistribute it to Shard or Replicate"]),
        ("mixed", ["'weight'", "F32[4, 4] on rank 0, F16[4, 4] on rank 1", "the same type"]),
        ("uneven", ["'weight'", "would hold (2, 4), but holds", "distribute_tensor()"]),
        ("plain state", ["SGD keeps 'mine' of parameter 'weight'", "torch.zeros_like(parameter)"]),
        ("extra", ["extra 'average' holds a DTensor", "model={'name': module, ...}"]),
        ("fsdp 1", ["FSDP", "fully_shard"]),
    ],
)
def test_what_cannot_be_saved_is_refused_when_the_checkpointer_is_created(
    jobs: Jobs, tmp_path: Path, what: str, words: list[str]
) -> None:
    for kind, message in jobs.get(2).outcomes("guard_odd", what=what, url=str(tmp_path / "run")):
        assert kind == "failed"
        assert message.startswith(("ConfigurationError", "UnsupportedState")), message
        assert all(word in message for word in words), message


def test_a_parameter_with_another_global_shape_is_refused_by_name(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp", steps=1, every=1)
    job.call("build", how="fsdp", hidden=12)
    job.call("guard", url=url)
    for kind, message in job.outcomes("resume"):
        assert kind == "failed" and message.startswith("ModelMismatch")
        assert "up.weight is float32[12, 6], but float32[8, 6] in the checkpoint" in message


def test_a_job_with_fewer_ranks_than_shards_reads_all_of_them(jobs: Jobs, tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    saved(jobs.get(2), url, "fsdp", steps=1, every=1)
    before = jobs.get(2).call("shadow", step=1)[0]
    assert hf.open_run(url).verify() == []
    job = jobs.get(1)
    job.call("build", how="plain")
    job.call("guard", url=url)
    assert job.call("resume") == [1]
    assert job.call("held")[0]["up.weight"].tolist() == before["up.weight"].tolist()
