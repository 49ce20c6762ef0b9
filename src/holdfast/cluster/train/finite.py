"""What happens to a step whose gradients are NaN or infinite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from torch import nn

from holdfast.cluster.train.exchange import Floats
from holdfast.cluster.train.table import Table
from holdfast.errors import NotFinite

OnNan: TypeAlias = Literal["raise", "skip", "push"]
CHOICES: tuple[OnNan, ...] = ("raise", "skip", "push")


def all_finite(arrays: Sequence[Floats]) -> bool:
    """Whether every value is a finite number. A sum tells in one pass, unless it overflows itself."""
    with np.errstate(all="ignore"):
        return all(np.isfinite(each.sum()) or bool(np.isfinite(each).all()) for each in arrays)


def not_finite(tables: Sequence[Table], dense: Sequence[tuple[str, nn.Parameter]]) -> NotFinite:
    """Names the parameters."""
    parameters = [*((each.name, each.parameter) for each in tables), *dense]
    names = [name for name, each in parameters if each.grad is not None and not each.grad.isfinite().all()]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return NotFinite(
        f"the gradient of {listed} is NaN or infinite, and was not sent: check the loss, lower the learning rate or "
        'clip gradients; on_nan="skip" leaves such steps out'
    )
