"""Divided tables with an ordinary optimizer: a rank that holds no rows must know what those with rows keep of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.checkpoint.training.tables import Table
from holdfast.format.dtypes import code_of, torch_dtype


@dataclass(eq=False, slots=True, kw_only=True)
class LentTable(Table):
    """A table whose slots, where this rank has no rows, are empty tensors like those of a rank that has some."""

    borrowed: dict[str, Tensor] = field(default_factory=dict)
    holder: Optimizer | None = None  # of the model's parameter, where that has no rows

    def attach(self, optimizer: Optimizer) -> None:
        """One of the optimizers holds its parameter, which without rows is only a stand-in."""
        if self.stands_for is None:
            self.optimizer = optimizer
        else:
            self.holder = optimizer

    def slots(self) -> dict[str, Tensor]:
        """Its own, or those it was told of."""
        return Table.slots(self) if self.rows else dict(self.borrowed)

    def lend(self) -> dict[str, Any]:
        """What ranks without rows must know, as JSON: the slots, and numbers that the optimizer keeps."""
        slots = {name: [code_of(slot.dtype), list(slot.shape[1:])] for name, slot in self.slots().items()}
        state = self.optimizer.state.get(self.parameter, {}) if self.optimizer is not None else {}
        numbers = {
            key: [code_of(value.dtype), value.item()] if isinstance(value, Tensor) else value
            for key, value in state.items()
            if isinstance(key, str) and (isinstance(value, int | float) or _is_number(value))
        }
        return {"slots": slots, "numbers": numbers}

    def borrow(self, lent: Mapping[str, Any]) -> None:
        """Take over what ``lend`` said elsewhere. Slots that stay the same stay the same tensors."""
        wanted = {name: (torch_dtype(dtype), tuple(shape)) for name, (dtype, shape) in lent["slots"].items()}
        if {name: (slot.dtype, tuple(slot.shape[1:])) for name, slot in self.borrowed.items()} != wanted:
            self.borrowed = {name: torch.empty((0, *shape), dtype=dtype) for name, (dtype, shape) in wanted.items()}
        if self.holder is not None and self.stands_for is not None:
            state = self.holder.state[self.stands_for]
            for key, value in lent["numbers"].items():
                is_tensor = isinstance(value, list)
                state[key] = torch.tensor(value[1], dtype=torch_dtype(value[0])) if is_tensor else value


def _is_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0
