"""What the cluster of the second act trains, and the same training in one process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import holdfast as hf
from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.demo.job import BATCH, DIM, SCALE, SEED
from benchmarks.models import DLRM
from benchmarks.training import build_dlrm, evaluate, train_step
from holdfast.policy.tables import Tables

STEPS = 720  # of all workers together
HELD_OUT = 40  # batches for the AUC
LR_TABLES, LR_DENSE = 0.05, 0.02
BOTTOM, TOP = (64, 32), (64,)
MIN_BYTES = 1 << 18  # of a table on servers


@cache
def stream() -> ClickStream:
    """The same as in the first act."""
    return ClickStream(SEED, SCALE)


class Share:
    """Every n-th batch of the stream: what one worker trains on. Its place is a number."""

    def __init__(self, index: int, count: int) -> None:
        self._batches = range(index, STEPS, count)
        self._next = 0

    def __iter__(self) -> Iterator[Batch]:
        while self._next < len(self._batches):
            self._next += 1
            yield stream().batch(self._batches[self._next - 1], BATCH)
        self._next = 0

    def __len__(self) -> int:
        return len(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Where to go on."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter`` goes on there."""
        self._next = int(state["next"])


def build_model() -> DLRM:
    """A DLRM whose large tables live on servers."""
    model = DLRM(stream().cardinalities, DIM, bottom=BOTTOM, top=TOP, seed=SEED, on_servers=True)
    for table, rows in zip(model.emb, stream().cardinalities, strict=True):
        if 4 * rows * DIM < MIN_BYTES:
            nn.init.uniform_(cast(Tensor, table.weight), -bound(rows), bound(rows))
    return model


def tables() -> Tables:
    """Rows start as those of the plain model do."""
    bounds = [bound(rows) for rows in stream().cardinalities]
    init = {f"emb.{number}": hf.Uniform(-each, each) for number, each in enumerate(bounds)}
    return hf.tables(min_bytes=MIN_BYTES, init=init, seed=SEED)


def bound(rows: int) -> float:
    """Of the values that a table starts with."""
    return float(rows**-0.5)


def train(worker: hf.Worker) -> None:
    """An ordinary loop."""
    torch.set_num_threads(1)
    for batch in worker.batches(Share(worker.index, worker.count)):
        logits = worker.model(batch.dense, batch.ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        worker.metrics(logits, batch.labels)
        worker.step(loss=loss)


def plain_auc() -> float:
    """Of one process that trains on the same samples, in order, with torch's optimizers."""
    torch.set_num_threads(1)
    model, optimizers = build_dlrm(stream().cardinalities, DIM, bottom=BOTTOM, top=TOP, optimizer="adagrad", seed=SEED)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks")  # of torch's own Adagrad
        for number in range(STEPS):
            train_step(model, stream().batch(number, BATCH), optimizers)
    return evaluate(model, held_out())


def stored_auc(run: hf.Run) -> float:
    """Of the newest checkpoint, exported and loaded into a plain model."""
    model = DLRM(stream().cardinalities, DIM, bottom=BOTTOM, top=TOP, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        run.export(Path(folder, "model.safetensors"))
        model.load_state_dict(load_file(Path(folder, "model.safetensors")))
    return evaluate(model, held_out())


def held_out() -> Iterator[Batch]:
    """Samples that nobody trained on."""
    return (stream().batch(number, BATCH) for number in range(STEPS, STEPS + HELD_OUT))
