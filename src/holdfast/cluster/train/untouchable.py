"""The weight of a table that lives on servers, while its model is built: it has a shape and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigurationError

_HARMLESS_ATTRIBUTES = (
    "shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad", "grad_fn", "is_meta", "is_cuda",
    "is_cpu", "is_sparse", "is_nested", "is_quantized", "itemsize", "nbytes",
)  # fmt: skip
_HARMLESS = {
    *(getattr(Tensor, name).__get__ for name in _HARMLESS_ATTRIBUTES),
    Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.element_size, Tensor.__len__),
    *(Tensor.requires_grad_, Tensor.is_floating_point, Tensor.is_complex, Tensor.stride, Tensor.is_contiguous),
}
_TORCH = str(Path(torch.__file__).parent)


class UntouchableWeight(nn.Parameter):
    """Takes no memory. Its shape and dtype can be read; any other use is an error that says what to do instead."""

    origin: str

    @classmethod
    def of(cls, rows: int, width: int, *, kind: str, requires_grad: bool) -> UntouchableWeight:
        """For a table of this size.

        Args:
            rows: Of the table.
            width: Values in a row.
            kind: The class of its module.
            requires_grad: Whether it is trained.
        """
        weight = torch.Tensor._make_subclass(cls, torch.empty(rows, width, device="meta"), requires_grad)
        weight.origin = f"{kind}({rows}, {width}), created at {_creator()}"
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        found = next((each for each in _flat([*args, *(kwargs or {}).values()]) if isinstance(each, cls)), None)
        raise untouchable(found.origin if found is not None else "a table", _name_of(func))

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"UntouchableWeight of {self.origin}"


def untouchable(table: str, use: str) -> ConfigurationError:
    """What to do instead of using a weight that is not here."""
    return ConfigurationError(
        f"the weight of {table} lives on servers and never exists in a worker, so that {use} cannot run on it while "
        "the model is built. To declare how its rows begin, use tables(init={'its.name': Uniform(low, high)}), "
        "Normal or Constant; to keep the table in every worker, raise tables(min_bytes=...) above its size"
    )


def _name_of(func: Callable[..., Any]) -> str:
    attribute = getattr(func, "__self__", None)  # of a getter, such as that of .data
    return str(getattr(attribute, "__name__", None) or getattr(func, "__name__", func))


def _flat(values: Sequence[Any]) -> list[Any]:
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def _creator() -> str:
    """The line of the user's that made the module."""
    frame: Any = sys._getframe(1)
    own = str(Path(__file__).parent)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, own)):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
