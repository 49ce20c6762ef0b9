"""Buffers: what a model has besides parameters, such as running means; each worker has its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Buffers:
    """Of all modules of a model, which stay the same; a module may put another tensor in a buffer's place at any time.

    ``named_buffers()`` walks the tree of modules each time, which takes longer than the rest of a place.

    Args:
        model: Whose they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(f"{name}." if name else "", module) for name, module in model.named_modules()]

    def now(self) -> dict[str, Tensor]:
        """By name, each once."""
        found: dict[int, tuple[str, Tensor]] = {}
        for prefix, module in self._modules:
            for name, each in module._buffers.items():
                if each is not None:
                    found.setdefault(id(each), (prefix + name, each.detach()))
        return dict(found.values())

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Copy values into those of the same names."""
        buffers = self.now()
        for name, each in values.items():
            buffers[name].copy_(each)
