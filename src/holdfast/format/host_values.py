"""Torch's values in a process that has not imported torch: what they are, without what can be done with them.

A state tree holds tensors and a few other values of torch's. A server of a cluster stores and restores such trees, and
torch would cost it more memory than all of its own code. Here a tensor is its elements in a NumPy array; both forms
have the same bytes in storage.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from holdfast.format.document import Json
from holdfast.format.dtypes import array_code, array_dtype, itemsize, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A tensor: ``dtype`` is its type as stored, ``array`` its elements.

    Of a type that NumPy lacks, such as ``BF16``, the elements are unsigned integers with the same bits.
    """

    array: NDArray[Any]
    dtype: str = ""  # that of the array

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype or array_code(self.array.dtype))
        if self.array.dtype != array_dtype(self.dtype):
            raise ValueError(f"a tensor of type {self.dtype} cannot come in an array of {self.array.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.array.size * itemsize(self.dtype)

    @property
    def raw(self) -> NDArray[np.uint8]:
        """Its elements as bytes, one after another; a copy where they do not lie so."""
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)

    def in_torch(self) -> Tensor:
        """The same tensor, of torch's: in the same memory where that can be written to."""
        import torch

        raw = self.raw
        flat = torch.from_numpy(raw if raw.flags.writeable else raw.copy())
        return flat.view(torch_dtype(self.dtype)).view(self.shape)

    @classmethod
    def stored(cls, data: memoryview, dtype: str, shape: tuple[int, ...]) -> HostTensor:
        """From stored bytes, without a copy where they can be written to."""
        if not len(data):
            return cls(np.empty(shape, array_dtype(dtype)), dtype)
        buffer = bytearray(data) if data.readonly else data
        return cls(np.frombuffer(buffer, array_dtype(dtype)).reshape(shape), dtype)


@dataclass(frozen=True, slots=True)
class HostValue:
    """A ``torch.Size``, ``dtype`` or ``device``: as a tree says it, so that it can be stored again."""

    tag: str
    payload: Json


def is_torch_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of torch's. Does not import torch: then nobody has one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_tensor(value: object) -> bool:
    """Whether it is a tensor in either form."""
    return isinstance(value, HostTensor) or is_torch_tensor(value)


def tensors_in(tree: Any) -> Any:
    """A copy of a tree of dictionaries, lists and tuples in which every NumPy array is a tensor."""
    if isinstance(tree, dict):
        return {key: tensors_in(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(tensors_in(value) for value in tree)
    return HostTensor(tree) if isinstance(tree, np.ndarray) else tree


def arrays_in(tree: Any) -> Any:
    """A copy of a tree of dictionaries, lists and tuples in which every HostTensor is its array."""
    if isinstance(tree, dict):
        return {key: arrays_in(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(arrays_in(value) for value in tree)
    return tree.array if isinstance(tree, HostTensor) else tree
