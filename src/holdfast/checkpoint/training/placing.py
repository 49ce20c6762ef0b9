"""Puts stored tensors into live ones: whole ones and DTensors, of which a rank reads no more than it holds."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from holdfast.checkpoint.training.dtensors import box_of, divided_like, held_by_all, is_dtensor, local_of
from holdfast.checkpoint.training.forms import has_form
from holdfast.format.boxes import Box


@runtime_checkable
class StoredTensor(Protocol):
    """A tensor that is still in storage, in tiles of several writers."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        ...

    def read(self, box: Box) -> Tensor:
        """A part of it, in main memory."""
        ...


Source = Tensor | StoredTensor


def is_source(value: object) -> TypeGuard[Source]:
    """Whether it is a tensor, or one that is still in storage."""
    return isinstance(value, Tensor | StoredTensor)


def write(value: Source, live: Tensor, name: str = "") -> Tensor:
    """Write this rank's part of a tensor into a live one of the same shape, in place: others may hold that."""
    with torch.no_grad():
        local_of(live).copy_(_part(value, box_of(live, name)))
    return live


def place(value: Source, live: Any, device: torch.device, parameter: Tensor | None = None) -> Tensor:
    """``value`` in the storage of ``live`` where that fits, else in storage of its own; its type stays as stored.

    State of a DTensor consists of DTensors: divided like the parameter where it has its shape, else held by all.
    """
    divided = is_dtensor(parameter) and (len(value.shape) > 0 or not isinstance(value, Tensor))
    if isinstance(live, Tensor) and has_form(live, value.shape, value.dtype) and is_dtensor(live) == divided:
        return write(value, live)
    target = live.device if isinstance(live, Tensor) else device
    if not divided:
        return _part(value, Box.whole(value.shape)).detach().to(target, copy=True)
    assert parameter is not None
    if tuple(value.shape) != tuple(parameter.shape):
        return held_by_all(_part(value, Box.whole(value.shape)).detach().to(target, copy=True), parameter)
    own = _part(value, box_of(parameter, "")).detach().to(target, copy=True)
    return divided_like(own.contiguous(), parameter, value.shape)


def _part(value: Source, box: Box) -> Tensor:
    return value[box.within(Box.whole(value.shape))] if isinstance(value, Tensor) else value.read(box)
