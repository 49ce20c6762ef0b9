"""How the ranks of a job agree on a save. In the foreground, a few bytes at a time, and only around saves.

Storage decides commits; these collectives only make sure that all ranks snapshot the same step in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from holdfast.errors import ConfigurationError, HoldfastError


class Agreement(Protocol):
    """Every method is called by all ranks at the same point. Raises RanksMissing if some do not come."""

    rank: int
    world: int
    peers: Mapping[int, int]  # pidfds of the other ranks, where all are on this machine; else none

    def broadcast(self, value: Any, *, wait: bool = True) -> Any:
        """Rank 0's value (plain JSON), on every rank. Without ``wait`` rank 0 goes on, and waits in its next call."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (plain JSON), in the order of ranks, on every rank."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        ...


def gather_or_raise(agreement: Agreement, find: Callable[[], Any]) -> list[Any]:
    """What every rank finds (plain JSON); raises ConfigurationError on all of them if one finds that it is refused."""
    try:
        own: list[Any] = [find(), None]
    except HoldfastError as error:
        own = [None, str(error)]
    found = agreement.gather(own)
    for problem in (problem for _, problem in found if problem is not None):
        raise ConfigurationError(problem)
    return [value for value, _ in found]


class Alone:
    """A job of one process."""

    rank = 0
    world = 1
    peers: Mapping[int, int] = MappingProxyType({})

    def broadcast(self, value: Any, *, wait: bool = True) -> Any:
        """The value itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value itself."""
        return [value]

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag
