"""How kernels are compiled with Numba: once, for known types, and cached for other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped, unused-ignore]

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(signatures: Sequence[Any], *, nogil: bool = True, **options: Any) -> Callable[[Kernel], Kernel]:
    """Compile now and for these types only: a call with another one is an error, never a pause in a training step.

    Args:
        signatures: The types.
        nogil: Whether other threads may run Python meanwhile. False: for microseconds, after which the GIL may be
            another's for milliseconds.
        options: Numba's.
    """
    return kept(lambda **caching: numba.njit(list(signatures), nogil=nogil, **caching, **options))


def kept(compiler: Callable[..., Any]) -> Callable[[Kernel], Any]:
    """A decorator that keeps what ``compiler`` makes of a function for other processes.

    A kept kernel holds the code of those that it calls, but Numba looks only at the file of the kernel itself to see
    whether what it kept is still good. So the name under which it is kept tells the state of all files of kernels.
    """

    def decorate(function: Kernel) -> Any:
        function.__qualname__ += f"_{_digest()}"
        try:
            return compiler(cache=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):  # no directory that it may write to: compile in every process
                raise
            return compiler()(function)

    return decorate


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
