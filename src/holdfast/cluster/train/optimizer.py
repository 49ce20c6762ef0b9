"""WorkerOptimizer: what schedulers, scalers and clipping expect of an optimizer; its step goes out to servers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class WorkerOptimizer(Optimizer):
    """Two groups of parameters, ``tables`` and ``dense``, whose ``lr`` goes out with each step.

    Rows and their slots are on servers, so it has no state of its own. ``initial_lr`` is set: after a restart,
    ``LambdaLR(worker.optimizer, schedule, last_epoch=worker.steps - 1)`` goes on where the schedule was.

    Args:
        tables: Parameters that show the rows of a batch.
        dense: All others.
        lr_tables: The learning rate of tables.
        lr_dense: The learning rate of the others.
        push: Sends the gradients of a step, with both learning rates.
    """

    def __init__(
        self,
        tables: Sequence[nn.Parameter],
        dense: Sequence[nn.Parameter],
        *,
        lr_tables: float,
        lr_dense: float,
        push: Callable[[float, float], None],
    ) -> None:
        groups = [
            {"params": list(tables), "name": "tables", "lr": lr_tables, "initial_lr": lr_tables},
            {"params": list(dense), "name": "dense", "lr": lr_dense, "initial_lr": lr_dense},
        ]
        super().__init__(groups, {"lr": lr_tables})
        self._push = push

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch, without what torch wraps it in: that imports its compiler, a second or more of each start.

        Args:
            param_group: Parameters, and their options.
        """
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send the gradients to servers, which move the weights; the next batch brings them.

        Args:
            closure: Computes the loss again, as in torch.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tables, dense = self.param_groups[0], self.param_groups[1]
        self._push(float(tables["lr"]), float(dense["lr"]))
        return loss
