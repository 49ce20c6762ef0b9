"""How kernels are compiled with Numba: once, for known types, and cached for other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped, unused-ignore]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(signatures: list[str]) -> Callable[[Kernel], Kernel]:
    """Compile now and for these types only: a call with another one is an error, never a pause in a training step."""

    def decorate(function: Kernel) -> Kernel:
        try:
            return cast(Kernel, numba.njit(signatures, nogil=True, cache=True)(function))
        except RuntimeError as error:
            if "cannot cache" not in str(error):  # no directory that it may write to: compile in every process
                raise
            return cast(Kernel, numba.njit(signatures, nogil=True)(function))

    return decorate
