"""A tensor's form: its type and its shape, which is what storing and restoring compare."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.format.dtypes import code_of


def form_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """Its type as it is stored, and its shape."""
    return code_of(tensor.dtype), tuple(tensor.shape)


def has_form(value: object, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether this is a plain tensor of that shape and type."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return (tuple(value.shape), value.dtype) == (tuple(shape), dtype)
