"""What benchmarks and the demo share: a model with its optimizers, one step, and the AUC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from benchmarks.data.schema import Batch
from benchmarks.models import DLRM

OptimizerName = Literal["adagrad", "sgd", "sparse_adam"]


class Learner(NamedTuple):
    """A model and the optimizers that move it; unpacks into the two."""

    model: DLRM
    optimizers: list[Optimizer]  # the tables' first, then that of everything else


def build_dlrm(
    cardinalities: Sequence[int],
    dim: int = 16,
    *,
    sparse: bool = True,
    optimizer: OptimizerName = "adagrad",
    bottom: Sequence[int] = (512, 256, 64),
    top: Sequence[int] = (512, 256),
    seed: int = 0,
) -> Learner:
    """A DLRM with one optimizer for its tables and one for the rest."""
    model = DLRM(cardinalities, dim, sparse=sparse, bottom=bottom, top=top, seed=seed)
    tables = list(model.emb.parameters())
    rest = [*model.bottom.parameters(), *model.top.parameters()]
    return Learner(model=model, optimizers=_optimizers(optimizer, tables, rest, sparse=sparse))


def _optimizers(
    name: OptimizerName, tables: list[nn.Parameter], rest: list[nn.Parameter], *, sparse: bool
) -> list[Optimizer]:
    if name == "adagrad":
        return [Adagrad(tables, lr=0.05), Adagrad(rest, lr=0.02)]
    if name == "sgd":
        return [SGD(tables, lr=10.0), SGD(rest, lr=0.2)]
    if name == "sparse_adam" and sparse:
        return [SparseAdam(tables, lr=2e-3), Adam(rest, lr=2e-3)]
    if name == "sparse_adam":
        raise ValueError("sparse_adam takes sparse gradients only: pass sparse=True, or another optimizer")
    raise ValueError(f"unknown optimizer {name!r}: take adagrad, sgd or sparse_adam")


def train_step(model: nn.Module, batch: Batch, optimizers: Iterable[Optimizer]) -> Tensor:
    """One step on one batch; returns the loss, detached."""
    optimizers = list(optimizers)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss = F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch]) -> float:
    """The AUC over all batches."""
    was_training = model.training
    model.eval()
    pairs = [(batch.labels, model(batch.dense, batch.ids)) for batch in batches]
    model.train(was_training)
    labels, scores = zip(*pairs, strict=True)
    return auc(torch.cat(labels), torch.cat(scores))


def auc(labels: ArrayLike | Tensor, scores: ArrayLike | Tensor) -> float:
    """The chance that a positive scores above a negative, a tie counting half: exact, by the sum of mid-ranks."""
    positive = np.asarray(labels).astype(bool).ravel()
    _, group, size = np.unique(np.asarray(scores).ravel(), return_inverse=True, return_counts=True)
    mid_rank = (np.cumsum(size) - (size - 1) / 2)[group]
    positives = int(positive.sum())
    negatives = positive.size - positives
    if not positives or not negatives:
        raise ValueError(f"the AUC needs both labels: {positives} positive, {negatives} negative samples")
    above = float(mid_rank[positive].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)
