"""One rank of a job in a process of its own: does what it is told, and answers."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import traceback
import warnings
from abc import ABC, abstractmethod
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import holdfast as hf
from holdfast.storage import open_store
from tests.jobs.arrays import Arrays, keep

SETTINGS = hf.Settings(
    buffer_bytes=2**20, frame_bytes=2**16, reserve_bytes=0, ranks_s=60.0, lease_s=5.0, handle_sigterm=False
)


class Rank(ABC):
    """A rank, and the training that it is in, whose model some library divides: it says how in ``build``."""

    def __init__(self, number: int, world: int, folder: str) -> None:
        self.number, self.world = number, world
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=number, world_size=world, timeout=timedelta(seconds=60)
        )

    def begin(self, model: nn.Module, optimizers: list[Optimizer]) -> None:
        """This is the training from now on."""
        self.model: Any = model
        self.optimizers = optimizers
        self.shadows: dict[int, Arrays] = {}
        self.others: list[hf.Checkpointer] = []

    @abstractmethod
    def backward(self) -> None:
        """A forward and a backward pass over the batch of this step."""

    @abstractmethod
    def held(self) -> Arrays:
        """Everything that this rank has: copies, by name."""

    def guard(self, url: str, *, agent: bool = False, **options: Any) -> None:
        """A Checkpointer over the training, whose agent is a thread unless a process is asked for."""
        options = {"save": hf.Never(), "overlap": hf.Overlap.WAIT, "settings": SETTINGS, **options}
        self.url = url
        where = url if agent else open_store(url)
        self.checkpointer = hf.Checkpointer(where, model=self.model, optimizer=self.optimizers, **options)

    def guard_also(self, url: str, **options: Any) -> None:
        """One more Checkpointer over the same training, which saves at the same steps."""
        first, place = self.checkpointer, self.url
        self.guard(url, **options)
        assert self.checkpointer.resume() == 0
        self.others.append(self.checkpointer)
        self.checkpointer, self.url = first, place

    def resume(self, **options: Any) -> int:
        return self.checkpointer.resume(**options)

    def train(self, steps: int, save_every: int = 0) -> int:
        """Train, and save at some of the steps; keeps shadows of what was saved."""
        for _ in range(steps):
            self.learn()
            self.step(save_every)
        return self.checkpointer.steps

    def learn(self) -> None:
        """From the batch of this step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def step(self, save_every: int) -> None:
        """The optimizers have stepped."""
        for guard in (self.checkpointer, *self.others):
            guard.step()
        if save_every and self.checkpointer.steps % save_every == 0:
            self.save()

    def save(self) -> int:
        """Save now, and keep a shadow; the rows that were written."""
        self.shadows[self.checkpointer.steps] = held = self.held()
        keep(held, self.url, self.checkpointer.steps, self.number)
        assert all([guard.save(wait=True) for guard in (self.checkpointer, *self.others)])
        return self.rows_written()

    def save_blindly(self) -> int:
        """Save without a shadow; the rows that were written."""
        assert self.checkpointer.save(wait=True)
        return self.rows_written()

    def rows_written(self) -> int:
        """By the newest save of all ranks."""
        return hf.open_run(self.url).checkpoints()[-1].rows_written

    def shadow(self, step: int) -> Arrays:
        return self.shadows[step]

    def die_in(self, where: str) -> None:
        """Be killed where a save or a restore reaches this point."""
        kind, _, method = where.rpartition(".")
        owner = getattr(importlib.import_module(kind.rpartition(".")[0]), kind.rpartition(".")[2])
        setattr(owner, method, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))

    def close(self) -> int:
        """End the training; the number of checkpoints that there are."""
        self.checkpointer.close()
        return len(hf.open_run(self.url).checkpoints())


def serve(kind: type[Rank], number: int, world: int, folder: str, pipe: Connection) -> None:
    """Do what comes through the pipe until it is closed."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    torch.set_num_threads(1)
    rank = kind(number, world, folder)
    pipe.send(("ready", None))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("done", getattr(rank, name)(**arguments)))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
