"""Loops over epochs, killed at every point: what was read, drawn and done after a resume is what was left to do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.errors import ReaderError
from tests.checkpoint.training.test_batches import IN_PROCESS, WITH_WORKERS, Queue, loader, plain, stored

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore:.*has no state.*")
EPOCHS = 3
DRAW_TWICE = {"stateful distributed sampler", "own loader that stays at its end"}  # when opened after an ended pass


def draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


class Trainer:
    """Trains by epochs and draws random numbers all over; may be stopped, as by a kill, at any of its points."""

    def __init__(self, make: Callable[[], Any], checkpoint: Any = None, *, seed: int = 0) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.reader = Reader(make())
        self.rng = checkpoint["rng"] if checkpoint else None
        if checkpoint is not None:
            self.reader.load_state(checkpoint["reader"], checkpoint["rng"])

    def train(self, epochs: int = EPOCHS) -> Iterator[Any]:
        """Gives what was done, at each point where a checkpoint may be taken."""
        for epoch in self.reader.epochs(epochs, on_iterator=lambda: restore_rng(self.rng)):
            for batch in epoch:
                yield ("batch", epoch.number, plain(batch), draws())
            assert self.reader.why_not_save is not None
            done = ("work", epoch.number, draws())
            epoch.finish()
            yield done

    def checkpoint(self) -> Any:
        assert self.reader.why_not_save is None
        return stored({"reader": self.reader.state(), "rng": capture_rng()})


def uninterrupted(make: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    trainer = Trainer(make)
    trace, checkpoints = [], []
    for done in trainer.train():
        trace.append(done)
        checkpoints.append(trainer.checkpoint())
    return trace, checkpoints


@pytest.mark.parametrize("name", sorted(IN_PROCESS.keys() - DRAW_TWICE))
def test_resumed_run_does_what_was_left_to_do_and_nothing_twice(name: str) -> None:
    make = IN_PROCESS[name]
    trace, checkpoints = uninterrupted(make)
    assert [step[1] for step in trace if step[0] == "work"] == [0, 1, 2]
    for point, checkpoint in enumerate(checkpoints, start=1):
        assert [*Trainer(make, checkpoint, seed=point).train()] == trace[point:], f"killed after {trace[point - 1]}"


@pytest.mark.parametrize("name", ["shuffled", "stateful stream"])
def test_resumed_run_with_worker_processes_does_what_was_left_to_do(name: str) -> None:
    make = WITH_WORKERS[name]
    trace, checkpoints = uninterrupted(make)
    works = [point for point, step in enumerate(trace, start=1) if step[0] == "work"]
    for point in (
        works[0] - 1,
        works[0],
        works[0] + 1,
        works[-1],
    ):  # batch, work, batch; the end
        assert [*Trainer(make, checkpoints[point - 1], seed=point).train()] == trace[point:]


def test_work_that_was_under_way_at_a_kill_is_done_from_its_beginning() -> None:
    make = IN_PROCESS["shuffled"]
    trace, checkpoints = uninterrupted(make)
    last_batch = next(point for point, step in enumerate(trace) if step[0] == "work")
    trainer = Trainer(make)
    for _, epoch in zip(range(1), trainer.reader.epochs(EPOCHS), strict=False):
        for _ in epoch:
            checkpoint = trainer.checkpoint()  # that of the last batch; the work begins, and the kill comes
    assert trace[last_batch][:2] == next(Trainer(make, checkpoint).train())[:2] == ("work", 0)
    assert [*Trainer(make, checkpoints[last_batch - 1], seed=5).train()] == trace[last_batch:]


def test_a_loop_left_after_its_work_has_done_it_and_one_left_before_has_not() -> None:
    trainer = Trainer(IN_PROCESS["in order"])
    for epoch in trainer.reader.epochs(EPOCHS):
        for _ in epoch:
            pass
        break
    assert trainer.reader.has_news
    assert [epoch.number for epoch in trainer.reader.epochs(EPOCHS) if [*epoch]] == [1, 2]
    trainer = Trainer(IN_PROCESS["in order"])
    for epoch in trainer.reader.epochs(EPOCHS):
        for _ in epoch:
            break
        break
    assert not trainer.reader.has_news
    assert [(epoch.number, len([*epoch])) for epoch in trainer.reader.epochs(EPOCHS)] == [(0, 3), (1, 4), (2, 4)]


def test_a_checkpoint_of_a_loop_over_batches_is_continued_by_epochs_and_the_other_way_round() -> None:
    first = Trainer(IN_PROCESS["in order"])
    for _ in zip(range(6), first.reader.batches(EPOCHS), strict=False):  # 4 batches an epoch
        pass
    by_epochs = Trainer(IN_PROCESS["in order"], first.checkpoint())
    rest = [(epoch.number, len([*epoch])) for epoch in by_epochs.reader.epochs(EPOCHS)]
    assert rest == [(1, 2), (2, 4)]
    trace, checkpoints = uninterrupted(IN_PROCESS["in order"])
    for done, checkpoint in zip(trace, checkpoints, strict=True):
        left = [*Trainer(IN_PROCESS["in order"], checkpoint).reader.batches(EPOCHS)]
        assert len(left) == sum(step[0] == "batch" for step in trace[trace.index(done) + 1 :])


def test_more_epochs_can_be_given_to_a_finished_run() -> None:
    trainer = Trainer(IN_PROCESS["shuffled"])
    [*trainer.train(2)]
    checkpoint = trainer.checkpoint()
    assert [*Trainer(IN_PROCESS["shuffled"], checkpoint).train(2)] == []
    trace, _ = uninterrupted(IN_PROCESS["shuffled"])
    assert [*Trainer(IN_PROCESS["shuffled"], checkpoint).train(3)] == [step for step in trace if step[1] == 2]


@pytest.mark.parametrize("read", [0, 2])
def test_going_on_to_the_next_epoch_without_the_rest_of_this_one_is_an_error(read: int) -> None:
    epochs = Reader(loader()).epochs(2)
    epoch = next(epochs)
    for _ in zip(range(read), epoch, strict=False):
        pass
    with pytest.raises(ReaderError, match=r"epoch 0 were not read to the end.*num_samples"):
        next(epochs)


def test_two_loops_at_once_are_an_error() -> None:
    reader = Reader(loader())
    epochs = reader.epochs(1)
    next(iter(next(epochs)))
    with pytest.raises(ReaderError, match="already being iterated"):
        next(reader.batches(1))


def test_an_empty_loader_has_epochs_without_batches() -> None:
    assert [(epoch.number, [*epoch]) for epoch in Reader(loader([])).epochs(2)] == [(0, []), (1, [])]


def test_what_a_loader_has_read_ahead_into_the_next_epoch_is_handed_out_there() -> None:
    reader = Reader(Queue())  # 5 batches an epoch
    reader.grant(8)
    epochs = reader.epochs(2)
    assert [batch for (batch,) in next(epochs)] == [0, 1, 2, 3, 4]
    assert reader.why_not_save is not None and "prefetched" in reader.why_not_save
    rest = iter(next(epochs))
    assert [next(rest)[0] for _ in range(3)] == [5, 6, 7]
    assert reader.at_boundary
