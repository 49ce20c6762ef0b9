"""Models and training functions with something wrong about them."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.cluster.train.loop import TrainingLoop
from tests.cluster.processes import programs
from tests.cluster.processes.gate import Gate

CONTROLLER = "HOLDFAST_TESTS_CONTROLLER"


class Tiny(nn.Module):
    """A table with fewer rows than there are servers, and one without any."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__()
        self.emb = nn.EmbeddingBag(rows, 4, mode="sum")
        self.empty = nn.EmbeddingBag(0, 4)
        self.top = nn.Linear(8, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.top(torch.cat([dense, self.emb(ids[:, :1] % self.emb.num_embeddings)], 1)).squeeze(1)


def build_tiny() -> nn.Module:
    return Tiny()


def build_nothing() -> nn.Module:
    raise ValueError("the vocabulary is not here")


def build_at_the_controller_only() -> nn.Module:
    if os.environ[CONTROLLER] != str(os.getpid()):
        raise ValueError("the vocabulary is not on this machine")
    return programs.build_net()


def train_badly(worker: hf.Worker) -> None:
    """Steps 3 and 5 have gradients that are not numbers, step 7 has an id that is no row."""
    gate = Gate()
    samples = programs.Samples(12 * programs.BATCH)
    samples.ids[7 * programs.BATCH, 0] = programs.ROWS[0] + 41
    for number, batch in enumerate(worker.batches(DataLoader(samples, batch_size=programs.BATCH))):
        poison(worker, batch, number in (3, 5))
        if number == 2:
            gate.passes(worker)


def train_until_exit(worker: hf.Worker) -> None:
    """A program that ended with its training, as it was."""
    for number, batch in enumerate(worker.batches(programs.loader_of(worker.index, worker.count))):
        programs.take_step(worker, batch)
        if number == 2:
            sys.exit("the learning rate is missing")


def train_until_killed(worker: hf.Worker) -> None:
    """As a system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def poison(worker: TrainingLoop, batch: tuple[Tensor, Tensor, Tensor], is_poisonous: bool) -> None:
    dense, ids, labels = batch
    programs.take_step(worker, (dense * float("nan") if is_poisonous else dense, ids, labels))


def train_unevenly(worker: hf.Worker) -> None:
    """The second worker is ten times slower."""
    gate = Gate()
    for batch in worker.batches(programs.loader_of(worker.index, worker.count), epochs=None):
        time.sleep(0.1 if worker.index else 0.01)
        programs.take_step(worker, batch)
        if not gate.passes(worker):
            return
