"""Lets a test choose the clock, the pauses and the names that a public class sees, without a public argument."""

from __future__ import annotations

from typing import TypeVar, cast

from holdfast.runtime import Runtime

T = TypeVar("T")


def with_runtime(kind: type[T], runtime: Runtime) -> type[T]:
    """A ``Checkpointer``, ``Follower`` or ``Run`` class whose instances live in ``runtime`` instead of the real world.

    Args:
        kind: The class; it reads its class attribute ``_runtime``.
        runtime: What its instances ask for the time, wait with and draw names from.
    """
    if not isinstance(getattr(kind, "_runtime", None), Runtime):
        raise TypeError(f"{kind.__name__} has no runtime to replace; pass Checkpointer, Follower or Run")
    return cast(type[T], type(kind.__name__, (kind,), {"_runtime": runtime}))
