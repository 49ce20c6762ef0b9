"""Work that is done once an epoch, under a Checkpointer that saves at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.errors import RunError
from holdfast.storage import MemoryStore
from tests.tiny import build, same, snapshot, train_step

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:.*lr_scheduler.step.*")
ROOT = Path(__file__).parents[2]
EPOCHS, BATCHES = 3, 4


class Job:
    """A training with a scheduler that is stepped once an epoch; notes its batches and its work."""

    def __init__(self, store: Any, **options: Any) -> None:
        self.model, self.optimizers = build()
        self.scheduler = StepLR(self.optimizers[1], step_size=1, gamma=0.5)
        self.trace: list[Any] = []
        self.guard = hf.Checkpointer(
            store,
            model=self.model,
            optimizer=self.optimizers,
            loader=StatefulDataLoader(list(range(BATCHES)), batch_size=1, shuffle=True),
            extra={"scheduler": self.scheduler},
            overlap=hf.Overlap.WAIT,
            **{"save": hf.EverySteps(1), "retention": hf.KeepAll(), **options},
        )

    def train(self, step: int | None = None) -> list[Any]:
        torch.manual_seed(0)
        with self.guard as guard:
            guard.resume(step)
            for epoch in guard.epochs(EPOCHS):
                for (number,) in epoch:
                    loss = train_step(self.model, self.optimizers, int(number))
                    self.trace.append((epoch.number, int(number)))
                    guard.step(loss=loss)
                self.work()
                self.trace.append((epoch.number, "work", self.scheduler.get_last_lr()))
        return self.trace

    def work(self) -> None:
        self.scheduler.step()

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return snapshot(self.model, self.optimizers)


def test_a_resume_from_any_checkpoint_does_the_rest_and_ends_alike() -> None:
    store, whole = MemoryStore(), Job(MemoryStore(), retention=hf.KeepLast(1))
    trace = whole.train()
    Job(store).train()
    assert [info.step for info in hf.open_run(store).checkpoints()] == [*range(1, 13), 12]
    batches = [index for index, done in enumerate(trace) if len(done) == 2]
    for step in range(12, 0, -1):  # going back abandons what is ahead
        resumed = Job(store, save=hf.Never())
        rest = [] if step == 12 else trace[batches[step - 1] + 1 :]
        assert resumed.train(step) == rest, f"resumed at step {step}"
        assert same(resumed.state, whole.state)


def test_the_end_of_the_block_saves_that_the_last_epochs_work_is_done() -> None:
    store = MemoryStore()
    first = Job(store)
    first.work = lambda: None  # type: ignore[method-assign] # an evaluation: nothing that is saved changes
    first.train()
    assert Job(store).train() == []


def test_a_save_in_the_middle_of_the_work_is_refused_and_works_once_it_is_finished() -> None:
    store = MemoryStore()
    job = Job(store, save=hf.Never())
    with job.guard as guard:
        guard.resume()
        epoch = next(epochs := guard.epochs(EPOCHS))
        for (number,) in epoch:
            guard.step(loss=train_step(job.model, job.optimizers, int(number)))
        with pytest.raises(RunError, match=r"per-epoch work of epoch 0.*finish\(\)"):
            guard.save()
        job.scheduler.step()
        epoch.finish()
        guard.save(tag="epoch-0", wait=True)
        assert [info.tag for info in hf.open_run(store).checkpoints()] == ["epoch-0"]
        epochs.close()
    assert [epoch for epoch, *_ in Job(store).train()] == [1] * 5 + [2] * 5


def test_a_step_made_in_the_work_is_saved_after_it() -> None:
    store = MemoryStore()
    job = Job(store)
    with job.guard as guard:
        guard.resume()
        for epoch in guard.epochs(1):
            for (number,) in epoch:
                guard.step(loss=train_step(job.model, job.optimizers, int(number)))
            guard.step(loss=train_step(job.model, job.optimizers, 99))
    assert [info.step for info in hf.open_run(store).checkpoints()] == [1, 2, 3, 4, 5]
    assert Job(store).guard.resume() == 5


def test_epochs_need_a_loader() -> None:
    model, optimizers = build()
    guard = hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers)
    with pytest.raises(hf.HoldfastError, match=r"epochs\(\) needs the data loader"):
        guard.epochs(1)
    guard.close()


KILLED = """
import os, signal, sys
import holdfast as hf
from tests.session.test_epochs import Job

class Mortal(Job):
    def work(self):
        super().work()
        if self.scheduler.last_epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

Mortal(sys.argv[1], save=hf.EverySteps(4)).train()
"""


def test_a_trainer_killed_in_the_work_of_an_epoch_does_it_once_more_and_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    killed = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED, url], cwd=ROOT, timeout=100)
    assert killed.returncode == -9
    whole = Job(MemoryStore())
    trace = whole.train()
    job = Job(url, save=hf.EverySteps(4))
    rest = job.train()
    assert rest == trace[-len(rest) :] and (1, "work", [0.00025]) in rest
    assert same(job.state, whole.state)
