"""What happens to a step whose gradients are NaN or infinite."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from holdfast.cluster.train.table import Table
from holdfast.errors import NotFinite

OnNan: TypeAlias = Literal["raise", "skip", "push"]
CHOICES: tuple[OnNan, ...] = ("raise", "skip", "push")


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """Of all values: one number to wait for."""
    return torch.stack([each.sum() for each in tensors]).sum()


def all_finite(tensors: Sequence[Tensor], total: Tensor) -> bool:
    """Whether every value is a finite number. Their sum tells, unless it overflows itself."""
    return isfinite(total.item()) or all(bool(each.isfinite().all()) for each in tensors)


def not_finite(tables: Sequence[Table], dense: Sequence[tuple[str, nn.Parameter]]) -> NotFinite:
    """Names the parameters."""
    parameters = [*((each.name, each.parameter) for each in tables), *dense]
    names = [name for name, each in parameters if each.grad is not None and not each.grad.isfinite().all()]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return NotFinite(
        f"the gradient of {listed} is NaN or infinite, and was not sent: check the loss, lower the learning rate or "
        'clip gradients; on_nan="skip" leaves such steps out'
    )
