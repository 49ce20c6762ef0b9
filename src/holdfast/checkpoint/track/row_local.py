"""Which optimizers move only the rows that their gradient names, and how.

An allow-list: an optimizer that is not known to leave every other row and slot unchanged, bit for bit, is not
row-local, unless the user declares it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

_EXACT = (torch.float32, torch.float64)  # narrower types go through float32 and back, which gives NaN another pattern
_DELTAS_COME_WITH = "to get deltas, use SparseAdam, or Adagrad or SGD without momentum and weight decay"
_DECLARE = "if it does, declare it with hf.RowLocal(optimizer) to get deltas"


ANY_CHANGES = 2**62  # a step may change a tensor in place as often as it likes


@dataclass(frozen=True, slots=True)
class RowLocal:
    """Declares an optimizer row-local: a step changes weights and slots of rows with a gradient, and of no others.

    For optimizers that are not torch's own. Rows have a gradient if a sparse one names them, or if a dense one is not
    all +0.0 there. The first steps are checked: rows that moved without a gradient make the table be saved whole.

    Args:
        optimizer: The optimizer; pass the result to ``Checkpointer(optimizer=...)`` in its place.
    """

    optimizer: Optimizer


def why_not_row_local(
    optimizer: Optimizer, group: Mapping[str, Any], *, sparse_gradient: bool, dtype: torch.dtype = torch.float32
) -> str | None:
    """None if a step moves only rows with a gradient; else the reason, and what would give deltas.

    A sparse gradient names its rows. A dense one is also applied to the rows where it is +0.0, so there the
    arithmetic itself must give every possible weight back, -0.0 included. ``dtype`` is the weights'.
    """
    kind = type(optimizer)  # a subclass may do anything in its step
    if kind is SparseAdam and sparse_gradient:
        return None
    if kind is SparseAdam:
        return "SparseAdam accepts only sparse gradients; use embeddings with sparse=True to get deltas"
    if kind is not SGD and kind is not Adagrad:
        remedy = _DELTAS_COME_WITH if kind.__module__.startswith("torch.") else _DECLARE
        return f"{kind.__name__} is not known to leave rows without a gradient unchanged; {remedy}"
    if not _is_zero(group["weight_decay"]):
        return f"{kind.__name__} with weight decay moves every row at every step; set weight_decay=0 to get deltas"
    if kind is SGD and not _is_zero(group["momentum"]):
        return "SGD with momentum keeps moving rows of earlier batches; set momentum=0 to get deltas"
    return None if sparse_gradient else _why_zeros_move(kind, group, dtype)


def restless_rows(optimizer: Optimizer, state: Mapping[str, Any]) -> Tensor | None:
    """Rows that a dense row-local step moves without a gradient, by what its slots hold: a byte each; None: no row.

    Adagrad divides by the root of its sum. Where that is NaN or negative, zero divided by it is NaN. An infinite sum
    gives zero. A step count that is no count spoils the rate of all rows. No other rule here has slots.
    """
    if type(optimizer) is not Adagrad or not state["sum"].numel():
        return None
    total, step = state["sum"].detach(), torch.as_tensor(state["step"])
    lowest = total.reshape(total.shape[0], -1).amin(dim=1)  # NaN, if there is one
    step = step.to(lowest.device, non_blocking=True)
    rests: Tensor = (lowest >= 0) & (step >= 0) & (step < math.inf)
    return rests.logical_not_().view(torch.uint8)


def in_place_changes(group: Mapping[str, Any]) -> int:
    """How often a row-local step changes the weights, and each slot, in place, as torch counts it."""
    return 0 if group.get("fused") else 1  # fused kernels are not counted


def skips(optimizer: Optimizer, gradient: Tensor) -> bool:
    """Whether a row-local step does nothing at all with this gradient."""
    return type(optimizer) is SparseAdam and gradient._nnz() == 0


def _why_zeros_move(kind: type[Optimizer], group: Mapping[str, Any], dtype: torch.dtype) -> str | None:
    """Why ``w - lr * 0`` or ``w - lr * 0 / (sqrt(sum) + eps)`` may differ from ``w``; None if it cannot."""
    advice = "use embeddings with sparse=True to get deltas"
    if dtype not in _EXACT:
        return f"dense arithmetic in {dtype} rewrites NaN; {advice}"
    if group["maximize"]:
        return f"with maximize=True a zero gradient turns weights of -0.0 into +0.0; {advice}"
    if not _gives_minus_zero(group["lr"], dtype):
        return f"the learning rate is not a finite, non-negative float on the CPU; {advice}"
    if kind is Adagrad:
        if not group["eps"] >= torch.finfo(dtype).tiny:
            return f"with eps={group['eps']} a zero gradient may be divided by zero; {advice}"
        if not (_is_plus(group["lr_decay"]) and _is_plus(group["initial_accumulator_value"])):
            return f"lr_decay and initial_accumulator_value are not finite and non-negative; {advice}"
    return None


def _is_zero(value: object) -> bool:
    """Whether it is zero for certain; asking a device would wait for it."""
    if isinstance(value, Tensor):
        return value.is_cpu and not value.any()
    return value == 0


def _gives_minus_zero(rate: object, dtype: torch.dtype) -> bool:
    """Whether ``-rate * +0.0`` is -0.0 for certain: added to any weight it gives that weight back."""
    if isinstance(rate, Tensor):
        rate = rate.item() if rate.is_cpu else math.nan
    if isinstance(rate, int) and rate == 0:  # -0 is 0
        return False
    return _is_plus(rate) and cast(float, rate) <= torch.finfo(dtype).max


def _is_plus(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and math.copysign(1.0, value) > 0
