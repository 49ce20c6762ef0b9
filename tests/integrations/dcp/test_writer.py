"""Writers of one process, and of jobs that compete for a run."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

import holdfast as hf
from holdfast import errors
from holdfast.errors import ConfigurationError, RunError
from holdfast.integrations.dcp import writer as writer_module
from holdfast.run import Run
from holdfast.storage import LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.server import S3Place

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

State = dict[str, Any]
LARGE = 5 << 19  # elements


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture(autouse=True)
def fresh_plans() -> Iterator[None]:
    yield
    for cache in ("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans", "_cached_global_plan"):
        getattr(SavePlanner, cache).clear()


def numbers(seed: int, count: int = 1000) -> Tensor:
    return torch.arange(count, dtype=torch.float32) + seed


def save(
    url: Any, state: State, step: int, *, writer: Callable[..., hf.dcp.Writer] = hf.dcp.Writer, **more: Any
) -> None:
    dcp.save(state, storage_writer=writer(url, step=step, **more))


def load(url: Any, names: list[str], step: int | str | None = None, count: int = 1000) -> dict[str, Tensor]:
    state = {name: torch.zeros(count) for name in names}
    dcp.load(state, storage_reader=hf.dcp.Reader(url, step=step))
    return state


def steps(url: str) -> list[int]:
    return [info.step for info in hf.open_run(url).checkpoints() if not info.abandoned]


def other_job(url: Any, **settings: Any) -> hf.dcp.Writer:
    """A Writer of another process."""
    writer = hf.dcp.Writer(url, **settings)
    writer._job = "another:1 by DCP"
    return writer


def test_a_checkpoint_of_dcp_is_one_of_a_run(url: str) -> None:
    save(url, {"a": numbers(1)}, 7, tag="first", metrics={"auc": 0.7})
    run = hf.open_run(url)
    (info,) = run.checkpoints()
    assert (info.step, info.tag, info.metrics, info.base) == (7, "first", {"auc": 0.7}, None)
    assert run.verify() == []
    assert run.summary().checkpoint == info
    assert run.summary().tables == ()
    assert [event.term for event in run.history()] == [1]


def test_all_writers_of_a_job_share_its_term(url: str) -> None:
    for step in (1, 2, 3):
        save(url, {"a": numbers(step)}, step, retention=hf.KeepAll())
    assert {info.term for info in hf.open_run(url).checkpoints()} == {1}


def test_pickled_writer_saves_for_the_job_it_came_from(url: str) -> None:
    save(url, {"a": numbers(1)}, 1, retention=hf.KeepAll())
    copied = pickle.loads(pickle.dumps(hf.dcp.Writer(url, step=2, retention=hf.KeepAll())))
    dcp.save({"a": numbers(2)}, storage_writer=copied)
    assert [(info.step, info.term) for info in hf.open_run(url).checkpoints()] == [(1, 1), (2, 1)]


def test_job_whose_run_was_taken_over_can_commit_nothing_more(url: str) -> None:
    save(url, {"a": numbers(1)}, 1)
    save(url, {"a": numbers(2)}, 2, writer=other_job)
    with pytest.raises(CheckpointException, match=r"another job \(another:1 by DCP\) took over"):
        save(url, {"a": numbers(3)}, 3)
    assert steps(url) == [2]
    assert torch.equal(load(url, ["a"])["a"], numbers(2))


def test_writer_that_is_overtaken_while_it_writes_commits_nothing(url: str, tmp_path: Path) -> None:
    save(url, {"a": numbers(1)}, 1, retention=hf.KeepAll())

    def overtake(operation: Operation) -> None:
        if operation.kind == "put" and operation.name.endswith(".safetensors"):
            store.before = None
            save(url, {"a": numbers(9)}, 9, writer=other_job, retention=hf.KeepAll())

    store = FaultyStore(LocalStore(url), before=overtake)
    with pytest.raises(CheckpointException, match="took over this run"):
        save(store, {"a": numbers(2)}, 2)
    assert steps(url) == [1, 9]
    assert hf.open_run(url).verify() == []


def test_unchanged_tensors_stay_while_a_checkpoint_refers_to_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GRACE_S", 0.0)
    state = {f"t{number}": numbers(number, 50_000) for number in range(10)}
    for step in range(1, 5):
        state["t0"] = numbers(100 * step, 50_000)
        save(url, state, step)  # with KeepLast(1)
        run = hf.open_run(url)
        (info,) = run.checkpoints()
        assert run.verify() == []
        found = load(url, list(state), count=50_000)
        assert all(torch.equal(found[name], value) for name, value in state.items())
        assert info.full_bytes > 2_000_000
        assert step == 1 or info.size_bytes < 0.15 * info.full_bytes
    folders = {each.name.split("/")[1] for each in LocalStore(url).list("data/")}
    assert len(folders) == 2  # the first, which holds the rest, and the newest: those between them are gone


def test_folders_that_are_mostly_unused_are_let_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GRACE_S", 0.0)
    state = {f"t{number}": numbers(number, 50_000) for number in range(10)}
    save(url, state, 1)
    first = next(iter(LocalStore(url).list("data/"))).name.split("/")[1]
    for step in range(2, 9):
        state[f"t{step}"] = numbers(1000 * step, 50_000)
        save(url, state, step)
    held = sum(each.size_bytes for each in LocalStore(url).list("data/"))
    assert not list(LocalStore(url).list(f"data/{first}/"))
    assert held < 2.2 * 10 * 50_000 * 4
    found = load(url, list(state), count=50_000)
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_a_large_tensor_is_referred_to_section_by_section(url: str) -> None:
    rows = torch.rand(6 << 20)  # 24 MiB, three sections
    save(url, {"rows": rows}, 1, retention=hf.KeepAll())
    rows[-1] += 1
    save(url, {"rows": rows}, 2, retention=hf.KeepAll())
    first, second = hf.open_run(url).checkpoints()
    assert second.size_bytes < 0.4 * first.size_bytes
    assert torch.equal(load(url, ["rows"], count=6 << 20)["rows"], rows)


def large_parts(count: int, elements: int = LARGE) -> State:
    """Of 10 MiB each, so that several frames are filled."""
    return {f"part{number:02d}": numbers(number, elements) for number in range(count)}


@pytest.mark.parametrize("elements", [LARGE, LARGE + 3])  # sections of whole cache lines, and others
def test_frames_that_are_written_before_they_are_hashed_are_stored_as_others_are(url: str, elements: int) -> None:
    state = large_parts(20, elements)
    save(url, state, 1, retention=hf.KeepAll())
    loaded = load(url, list(state), count=elements)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert hf.open_run(url).verify() == []
    save(url, state, 2, retention=hf.KeepAll())
    first, second = hf.open_run(url).checkpoints()
    assert second.size_bytes < first.size_bytes / 100  # all digests are those of what was stored


@pytest.mark.parametrize("after", [0, 1, 20])
def test_state_that_is_refused_on_the_way_ends_the_save_and_leaves_no_bundle(url: str, after: int) -> None:
    """Also when frames are being written whose digests nobody will compute any more."""
    state = large_parts(after) | {"refused": torch.quantize_per_tensor(numbers(1), 0.1, 0, torch.qint8)}
    with pytest.raises((CheckpointException, errors.UnsupportedState), match="refused"):
        save(url, state, 1)
    assert steps(url) == []
    assert not [path for path in Path(url).rglob("*") if path.suffix == ".safetensors" or "~" in path.name]


def test_disk_that_is_full_while_frames_are_hashed_ends_the_save() -> None:
    disk = SimulatedDisk()
    disk.capacity_bytes = LARGE
    with pytest.raises((CheckpointException, errors.StorageFull), match="full"):
        save(LocalStore("/run", disk), large_parts(16), 1)
    assert disk.used_bytes < LARGE


class Forgetful(DefaultSavePlanner):
    """Keeps nothing of its plan."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        del self.metadata
        return plans, metadata


class Other(DefaultSavePlanner):
    """Gives other metadata than it keeps."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, replace(metadata)


class Outdated(DefaultSavePlanner):
    """Keeps the metadata of its first plan."""

    first: Metadata | None = None

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        self.first = self.metadata = self.first or metadata
        return plans, metadata


@pytest.mark.parametrize("kind", [DefaultSavePlanner, Forgetful, Other, Outdated])
def test_checkpoint_is_whole_whatever_a_planner_keeps(url: str, kind: type[DefaultSavePlanner]) -> None:
    """The part is made while the disk is still writing, or afterwards if it could not be."""
    planner = kind()
    for step, names in enumerate(("ab", "bc", "c"), start=1):
        state = {name: numbers(step) for name in names} | {"step": step}
        dcp.save(state, storage_writer=hf.dcp.Writer(url, step=step, retention=hf.KeepAll()), planner=planner)
    for step, names in enumerate(("ab", "bc", "c"), start=1):
        loaded = load(url, list(names), step)
        assert all(torch.equal(each, numbers(step)) for each in loaded.values())
    assert hf.open_run(url).verify() == []


def test_values_that_are_large_are_stored(url: str) -> None:
    state = {"tensor": numbers(1), "text": "long" * (1 << 19)}
    save(url, state, 1)
    loaded = {"tensor": torch.zeros(1000), "text": ""}
    dcp.load(loaded, storage_reader=hf.dcp.Reader(url))
    assert torch.equal(loaded["tensor"], numbers(1))
    assert loaded["text"] == state["text"]


@pytest.mark.parametrize("written", [8, 9, 10])
def test_disk_that_fails_in_the_last_writes_commits_nothing(written: int) -> None:
    """When the part has been made, perhaps, but not all of what it refers to is written."""

    class Disk(SimulatedDisk):
        bodies = 0

        def write(self, handle: int, views: Sequence[memoryview], start: int = 0) -> None:
            if sum(view.nbytes for view in views) > LARGE:
                Disk.bodies += 1
                if Disk.bodies >= written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(handle, views, start)

    disk = Disk()
    with pytest.raises((CheckpointException, errors.StorageFull), match="full"):
        save(LocalStore("/run", disk), large_parts(30), 1)
    store = LocalStore("/run", disk)
    assert not Run(store).checkpoints()
    assert not [each for each in store.list("data/") if not each.name.endswith("/intent")]


def test_saving_an_earlier_step_leaves_the_later_ones(url: str) -> None:
    for step in (1, 2, 3):
        save(url, {"a": numbers(step)}, step, retention=hf.KeepAll())
    save(url, {"a": numbers(20)}, 2, retention=hf.KeepAll())
    infos = hf.open_run(url).checkpoints()
    assert [(info.step, info.abandoned) for info in infos] == [(1, False), (2, True), (3, True), (2, False)]
    assert infos[-1].parent == infos[0].id
    assert torch.equal(load(url, ["a"])["a"], numbers(20))
    assert torch.equal(load(url, ["a"], infos[1].id)["a"], numbers(2))


def test_checkpoint_dropped_while_it_is_referred_to_fails_the_save(url: str) -> None:
    save(url, {"a": numbers(1), "b": numbers(1)}, 1)

    def drop(operation: Operation) -> None:
        if operation.name.endswith("part-00000"):
            store.before = None
            save(url, {"a": numbers(5), "b": numbers(5)}, 5)

    store = FaultyStore(LocalStore(url), before=drop)
    with pytest.raises(CheckpointException, match="was dropped: retry"):
        save(store, {"a": numbers(2), "b": numbers(1)}, 2)
    assert torch.equal(load(url, ["b"])["b"], numbers(5))


def test_full_store_fails_the_save_and_takes_back_what_was_written(url: str) -> None:
    save(url, {"a": numbers(1)}, 1)
    before = {each.name for each in LocalStore(url).list("data/")}

    class Full(FaultyStore):
        def put(self, name: str, data: Any, *, create: bool = False) -> None:
            number = len(self.history) + 1
            self.plan = {number: Fault.FULL} if name.endswith("000001.safetensors") else {}
            super().put(name, data, create=create)

    with pytest.raises(CheckpointException, match="StorageFull"):
        save(Full(LocalStore(url)), {"a": numbers(2)}, 2)
    left = {each.name for each in LocalStore(url).list("data/")} - before
    assert all(name.endswith("/intent") for name in left)
    assert torch.equal(load(url, ["a"])["a"], numbers(1))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_what_could_not_be_made_durable_is_written_again(number: int, caplog: pytest.LogCaptureFixture) -> None:
    class Disk(SimulatedDisk):
        """Loses a bundle that it was given, once."""

        syncs = 0

        def sync(self, handle: int) -> None:
            Disk.syncs += 1
            if Disk.syncs == 3:  # after the catalog and the intent
                raise OSError(number, os.strerror(number))
            super().sync(handle)

    disk = Disk()
    save(LocalStore("/run", disk), {"a": numbers(1)}, 1)
    assert "could not be made durable, and is written again" in caplog.text
    disk.reboot(lose_unsynced=True)
    store = LocalStore("/run", disk)
    assert torch.equal(load(store, ["a"])["a"], numbers(1))
    assert Run(store).verify() == []
    assert sum(each.name.endswith(".safetensors") for each in store.list("data/")) == 2  # tensors, and the tree


@pytest.mark.slow
def test_a_bucket_holds_checkpoints_of_dcp(s3_place: S3Place) -> None:
    settings: Any = {"options": s3_place.options, "retention": hf.KeepAll()}
    state = {f"t{number}": torch.rand(3 << 20) for number in range(3)}  # each in two sections
    for step in (1, 2):
        state["t0"] = torch.rand(3 << 20)
        save(s3_place.url, state, step, **settings)
    found = {name: torch.zeros(3 << 20) for name in state}
    dcp.load(found, storage_reader=hf.dcp.Reader(s3_place.url, options=s3_place.options))
    assert all(torch.equal(found[name], value) for name, value in state.items())
    run = hf.open_run(s3_place.url, options=s3_place.options)
    first, second = run.checkpoints()
    assert second.size_bytes < 0.4 * first.size_bytes
    assert run.verify() == []


def test_step_can_come_as_checkpoint_id(url: str) -> None:
    writer = hf.dcp.Writer(url, step=0, retention=hf.KeepAll())
    for step in ("3", "4"):
        dcp.save({"a": numbers(int(step))}, checkpoint_id=step, storage_writer=writer)
    assert steps(url) == [3, 4]
    state = {"a": torch.zeros(1000)}
    dcp.load(state, checkpoint_id="3", storage_reader=hf.dcp.Reader(url))
    assert torch.equal(state["a"], numbers(3))
    with pytest.raises(ConfigurationError, match="'latest' is not a step"):
        dcp.save(state, checkpoint_id="latest", storage_writer=writer)


def test_policy_that_is_none_is_refused_before_anything_is_written(url: str) -> None:
    with pytest.raises(ConfigurationError, match="retention=3 is not valid"):
        hf.dcp.Writer(url, step=1, retention=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [-1, True, 1.5, "3"])
def test_odd_steps_are_refused(url: str, step: Any) -> None:
    with pytest.raises(ConfigurationError, match="step="):
        hf.dcp.Writer(url, step=step)


def test_ways_of_saving_that_do_not_end_in_one_commit_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="use_collectives"):
        dcp.save({"a": numbers(1)}, storage_writer=hf.dcp.Writer(url, step=1), use_collectives=False)
    for step in (1, 2):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = hf.dcp.Writer(url, step=step)
        if step == 1:
            dcp.save({"a": numbers(1)}, storage_writer=writer, planner=planner)
            continue
        with pytest.raises(CheckpointException, match="enable_plan_caching"):
            dcp.save({"a": numbers(1)}, storage_writer=writer, planner=planner)


def test_run_of_a_checkpointer_is_not_written_to_and_neither_the_other_way_round(tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    model = torch.nn.Linear(3, 2)
    with hf.Checkpointer(ours, model=model, save=hf.Never()) as guard:
        guard.resume()
        guard.save()
    with pytest.raises(CheckpointException, match=r"give dcp\.save its own URL"):
        save(ours, {"a": numbers(1)}, 1)
    save(theirs, {"a": numbers(1)}, 1)
    with pytest.raises(RunError, match=r"saved by torch\.distributed\.checkpoint"):
        hf.open_run(theirs).restore(model=model)
    with hf.Checkpointer(theirs, model=model) as guard, pytest.raises(RunError, match=r"hf\.dcp\.Reader"):
        guard.resume()
    assert [info.standing for info in hf.open_run(theirs).checkpoints()] == [""]  # nobody doubts it


def test_ranks_can_send_each_other_any_error() -> None:
    for kind in (errors.DamagedData, errors.UnreadableData):
        sent = pickle.loads(pickle.dumps(kind("data/x", "is missing")))
        assert (type(sent), str(sent), sent.object_name) == (kind, "data/x: is missing", "data/x")
    assert str(pickle.loads(pickle.dumps(errors.TakenOver("by b")))) == "by b"


def test_damage_is_found_and_named(url: str) -> None:
    save(url, {"a": numbers(1, 100_000)}, 1)
    store = LocalStore(url)
    name = next(each.name for each in store.list("data/") if each.name.endswith("00000-000001.safetensors"))
    data = bytearray(store.get(name))
    data[-5] ^= 1
    store.put(name, bytes(data))
    with pytest.raises(CheckpointException, match=rf"{name}: block \d+ does not match its checksum"):
        load(url, ["a"], count=100_000)
    (problem,) = hf.open_run(url).verify()
    assert problem.object_name == name
