"""The power is cut at every moment of three saves: the last committed checkpoint is there, exact, and no other."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.integrations.dcp import writer as writer_module
from holdfast.run import Run
from holdfast.runtime import Runtime
from holdfast.storage import LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.runtime import with_runtime
from tests.crash.recording import REBOOTS, ROOT, Recorder, WitnessedStore, listed, objects

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is"), pytest.mark.timeout(300)]


def state_at(step: int) -> dict[str, Tensor]:
    """Some of it changes with every step, some never, some every second one."""
    return {"changes": torch.full((50,), float(step)), "stays": torch.ones(60), "now": torch.full((9,), step // 2)}


def load(store: LocalStore, runtime: Runtime) -> tuple[int, dict[str, Tensor]]:
    state = {name: torch.zeros_like(value) for name, value in state_at(0).items()}
    dcp.load(state, storage_reader=with_runtime(hf.dcp.Reader, runtime)(store))
    (newest,) = [info for info in Run(store).checkpoints()][-1:]
    return newest.step, state


def test_last_checkpoint_survives_a_power_cut_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GRACE_S", 0.0)
    disk = SimulatedDisk()
    runtime = Runtime(sleep=lambda _: None, wall_s=lambda: 1e9)
    recorder = Recorder(disk, list(REBOOTS), objects)
    store = WitnessedStore(recorder, runtime)
    for step in (1, 2, 3):
        dcp.save(state_at(step), storage_writer=with_runtime(hf.dcp.Writer, runtime)(store, step=step))
    recorder.finish()
    seen = set()
    for left in recorder.aftermaths.values():
        after = LocalStore(ROOT, left.disk)
        head = Chain(after).head()
        assert (head.catalog.number if head else 0) in (left.committed, left.committed + 1), left
        assert listed(head) in [recorder.listed.get(n) for n in (left.committed, left.committed + 1)], left
        if head is not None and head.entries:
            step, state = load(after, runtime)
            assert all(torch.equal(state[name], value) for name, value in state_at(step).items()), left
            seen.add(step)
    assert seen == {1, 2, 3}
    assert len(recorder.aftermaths) > 30


def test_job_goes_on_after_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GRACE_S", 0.0)
    runtime = Runtime(sleep=lambda _: None)
    disk = SimulatedDisk()
    recorder = Recorder(disk, ["unsynced lost"], objects)
    for step in (1, 2):
        dcp.save(state_at(step), storage_writer=hf.dcp.Writer(WitnessedStore(recorder, runtime), step=step))
    for left in list(recorder.aftermaths.values())[::7]:
        after = LocalStore(ROOT, left.disk)
        writer = hf.dcp.Writer(after, step=3)
        writer._job = "after the cut"
        dcp.save(state_at(3), storage_writer=writer)
        step, state = load(after, runtime)
        assert step == 3
        assert all(torch.equal(state[name], value) for name, value in state_at(3).items())
        assert Run(after).verify() == []
