"""Layout: how a tensor's elements lie in memory. Views of the same elements are recognised by it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from torch import Tensor


class Layout(NamedTuple):
    """Sizes and strides, in the order of elements, however many dimensions the tensor has."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def are_same_elements(one: Tensor, other: Tensor) -> bool:
    """Whether both have the same elements of the same memory, in the same order."""
    return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype and layout_of(one) == layout_of(other)


def layout_of(tensor: Tensor) -> Layout:
    """The tensor's, with neighbouring dimensions joined where they form one, and those of size 1 left out."""
    return _joined(tensor.shape, tensor.stride())


@lru_cache(maxsize=1024)  # tables of one model have few different ones, and each is asked for in every step
def _joined(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    joined: list[tuple[int, int]] = []  # sizes and strides, the last dimension first
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return Layout(tuple(size for size, _ in reversed(joined)), tuple(stride for _, stride in reversed(joined)))
