"""A tensor's form: its type and its shape, which is what storing and restoring compare; and tensors from bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.format.dtypes import code_of, torch_dtype


def form_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """Its type as it is stored, and its shape."""
    return code_of(tensor.dtype), tuple(tensor.shape)


def has_form(value: object, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether this is a plain tensor of that shape and type."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return (tuple(value.shape), value.dtype) == (tuple(shape), dtype)


def as_tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Stored bytes as a tensor, without a copy where the buffer can be written to."""
    kind = torch_dtype(dtype)
    if not len(data):
        return torch.empty(shape, dtype=kind)
    buffer = bytearray(data) if data.readonly else data
    return torch.frombuffer(buffer, dtype=kind).view(shape)
