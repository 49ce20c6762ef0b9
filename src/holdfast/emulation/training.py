"""What an emulation trains: anything deterministic that advances step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn
from torch.optim import Optimizer


class Training(Protocol):
    """A training at its start. Step n is a function of the state before it and of n.

    So training the same steps again from the same state gives the same state, and full recovery need not do it.
    """

    @property
    def model(self) -> nn.Module:
        """The model being trained."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that update it."""

    @property
    def steps(self) -> int:
        """The number of steps."""

    def step(self, number: int) -> None:
        """Train step ``number``, from 0."""

    def auc(self) -> float:
        """How good the model is, on samples that it does not train on."""
