"""Tables that are DTensors get deltas: no row that changed is missing, and few others are in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from tests.jobs.arrays import assert_same
from tests.jobs.job import Jobs
from tests.session.sharded.model import ITEMS, USERS
from tests.session.sharded.test_meshes import resumed, saved


@pytest.mark.parametrize(
    ("how", "world"),
    [
        ("fsdp", 2),
        ("tp", 2),
        *(pytest.param(how, 4, marks=pytest.mark.slow) for how in ("fsdp", "hsdp", "tp", "columns", "fsdp+columns")),
    ],
)
def test_a_delta_holds_the_rows_with_a_gradient_and_each_rank_its_own(
    jobs: Jobs, tmp_path: Path, how: str, world: int
) -> None:
    job, url = jobs.get(world), str(tmp_path / "run")
    saved(job, url, how, steps=2, every=1)
    written = [each.rows_written for each in hf.open_run(url).checkpoints()]
    strips = len([name for name, _ in job.call("tables")[0]]) - 1  # of the table that may be divided by columns
    assert written[0] == strips * USERS + ITEMS
    assert 1 <= written[1] <= 3 * (strips + 1)  # a batch has three ids
    shares = [dict(each) for each in job.call("tables")]
    for name in shares[0]:
        assert sum(share[name] for share in shares) == (ITEMS if name == "items" else USERS)


def test_rows_that_were_edited_past_the_dtensor_are_in_the_next_delta(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp", steps=2, every=1)
    job.call("edit", row=3)
    assert job.call("save")[0] >= USERS
    before = job.call("shadow", step=2)[0]
    resumed(job, url, "tp", 2)
    assert_same(job.call("held")[0], before)


@pytest.mark.parametrize("how", ["fsdp", pytest.param("tp", marks=pytest.mark.slow)])
def test_a_gradient_that_a_hook_changes_as_a_dtensor_is_noticed(jobs: Jobs, tmp_path: Path, how: str) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, how, steps=1, every=1)
    job.call("meddle", row=20)
    job.call("train", steps=1, save_every=1)
    before = job.call("shadow", step=2)[0]
    resumed(job, url, how, 2)
    assert_same(job.call("held")[0], before)


def test_a_tracker_that_misses_a_row_is_found_out(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    job.whole = False  # its ranks are of no use afterwards
    job.call("watch_badly")
    saved(job, url, "fsdp", steps=6, every=2)
    before = job.call("shadow", step=6)[0]
    resumed(job, url, "fsdp", 6)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(job.call("held")[0], before)


def test_a_lost_range_of_rows_comes_back_and_the_others_stay(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp", steps=2, every=1)
    before = job.call("shadow", step=2)[0]
    job.call("train", steps=2)
    after = job.call("held")[0]
    job.call("recover", servers=[1], of=3)
    now, lost = job.call("held")[0], slice(USERS // 3, 2 * USERS // 3)
    for name in ("users.weight", "users.weight.sum"):
        assert not (before[name] == after[name]).all()
        after[name][lost] = before[name][lost]
        assert now[name].tobytes() == after[name].tobytes(), name


def test_close_saves_what_changed_on_any_rank_and_nothing_where_nothing_did(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp", steps=1, every=1)
    assert job.call("close") == [1, 1]
    resumed(job, url, "fsdp", 1)
    assert job.call("close") == [1, 1]
    resumed(job, url, "fsdp", 1)
    job.call("nudge", rank=1)
    before = job.call("held")[0]
    assert job.call("close") == [2, 2]
    resumed(job, url, "fsdp", 1)
    assert_same(job.call("held")[0], before)
