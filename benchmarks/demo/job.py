"""The training job of the demo, and the trainer process that runs it under Holdfast."""

from __future__ import annotations

import argparse
import hashlib
import warnings
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from benchmarks.data.synthetic import ClickDataset, ClickStream
from benchmarks.training import Learner, build_dlrm, train_step

SCALE = 0.01  # of Criteo Kaggle's cardinalities
DIM = 16
BATCH = 256
STEPS = 360
SAVE_EVERY = 30
SEED = 7


def build() -> tuple[Learner, StatefulDataLoader]:
    """Model, optimizers and loader; everything follows from the seed."""
    torch.set_num_threads(1)  # so small a model gains nothing from more
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    stream = ClickStream(SEED, SCALE)
    learner = build_dlrm(stream.cardinalities, DIM, bottom=(64, 32), top=(64,), optimizer="sparse_adam", seed=SEED)
    dataset = ClickDataset(stream, batch_size=BATCH, samples=BATCH * STEPS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # between torchdata and torch
        return learner, StatefulDataLoader(dataset, batch_size=None, num_workers=0)


def fingerprint(model: nn.Module, optimizers: Iterable[Optimizer]) -> str:
    """A digest of every bit of the model and of its optimizers' state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in sorted(state.items()):
                digest.update(name.encode() + torch.as_tensor(value).contiguous().numpy().tobytes())
    return digest.hexdigest()


def train_uninterrupted() -> str:
    """The fingerprint of a run that nothing happens to."""
    (model, optimizers), loader = build()
    for batch in loader:
        train_step(model, batch, optimizers)
    return fingerprint(model, optimizers)


def train_protected(url: str) -> None:
    """One life of the trainer: continue where the last one ended; tell the supervisor about every step."""
    (model, optimizers), loader = build()
    with hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        loader=loader,
        save=hf.EverySteps(SAVE_EVERY),
        strategy=hf.Intermittent(),
        retention=hf.KeepAll(),
    ) as guard:
        print("resumed", guard.resume(), flush=True)
        for batch in guard.batches(epochs=1):
            loss = train_step(model, batch, optimizers)
            taken = guard.stats.snapshots
            guard.step(loss=loss)
            if guard.stats.snapshots > taken:
                print("snapshot", guard.steps, flush=True)
            print("step", guard.steps, flush=True)
    print("finished", fingerprint(model, optimizers), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=train_protected.__doc__)
    parser.add_argument("url")
    train_protected(parser.parse_args().url)
