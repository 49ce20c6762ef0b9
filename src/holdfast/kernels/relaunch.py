"""Launches a Triton kernel again without asking what it has to be compiled for.

A launch through the kernel itself looks at every argument, and compares every constant of its module, in Python: some
0.1 ms where a training step has just emptied the caches. Whoever launches it knows what decides that, and says so.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

# In these a compiled kernel takes what the kernel takes: all arguments in their order, constants among them.
_KNOWN = frozenset({"3.6"})


class Relaunch:
    """One kernel, and what it was compiled to."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Any] = {}
        self._is_known = ".".join(triton.__version__.split(".")[:2]) in _KNOWN

    def __call__(self, grid: tuple[int, int, int], kind: Hashable, *arguments: Any, **options: Any) -> None:
        """Launch with all arguments in their order; those of one ``kind``, device included, run the same code."""
        compiled = self._compiled.get(kind)
        if compiled is not None:
            try:
                compiled[grid](*arguments)
                return
            except TypeError:  # it takes other arguments after all, and was not launched
                self._is_known = False
                self._compiled.clear()
        found = self._kernel[grid](*arguments, **options)
        if self._is_known and found is not None:  # the interpreter compiles nothing
            self._compiled[kind] = found
