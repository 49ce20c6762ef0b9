"""Lookups that write: an embedding with ``max_norm`` renormalizes the rows it looks up in every forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.track.table_watch import TableWatch

_FORWARDS = (nn.Embedding.forward, nn.EmbeddingBag.forward)


def watch_lookups(watch: TableWatch) -> list[RemovableHandle]:
    """Hook into the modules that renormalize just the rows in their input.

    A subclass with a forward of its own may map ids first, and a call of ``forward`` itself runs no hook: such writes
    show in the weight's version.
    """
    handles: list[RemovableHandle] = []
    if watch.table.stands_for is not None:  # a lookup's ids are not numbers of the rows that are held here
        return handles
    for module in watch.table.modules:
        if module.max_norm is not None and type(module).forward in _FORWARDS and "forward" not in vars(module):
            handles.append(module.register_forward_pre_hook(_Hook(lambda _: watch.before_lookup()), with_kwargs=True))
            handles.append(module.register_forward_hook(_Hook(watch.after_lookup), with_kwargs=True))
    return handles


class _Hook:
    """Passes ids on; stays behind when its module is copied or pickled: the copy's hook does nothing."""

    def __init__(self, call: Callable[[Tensor], None] | None = None) -> None:
        self._call = call

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: object) -> None:
        # In a compiled model no hook is left: there, too, the weight's version tells.
        if self._call is not None and not torch.compiler.is_compiling():
            self._call(args[0] if args else kwargs["input"])

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()
