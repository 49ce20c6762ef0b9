"""The seam between a worker's training loop and its servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.placement import Keys

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The answer to a pull. The arrays may be read-only, and stay as they are for as long as somebody holds them.

    Each may be one array, or one for each server in their order, which need not be joined.
    """

    rows: Sequence[Floats | Sequence[Floats]]  # for each group ``[keys, width]``, in the order of the keys
    dense: Floats | Sequence[Floats] | None  # the whole dense vector, where it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedStep:
    """The end of a step. The arrays belong to whoever it is given to: the training loop never writes to them again."""

    keys: Sequence[Keys]  # for each group, ascending, none twice
    gradients: Sequence[Floats]  # for each group ``[keys, width]``
    dense: Floats  # the gradients of the whole dense vector; 0 where a parameter had none
    lr_tables: float
    lr_dense: float
    place: bytes  # from where in the data, and with which random numbers, the next step starts


class Exchange(Protocol):
    """Moves rows and gradients between one worker and all servers.

    Groups are those of the placement, in its order. Each pull sees the pushes that were made before it, or those up to
    some point before it: how far it may be behind is what a job's settings say. Any call may wait for servers.
    """

    def pull(self, keys: Sequence[Keys], *, dense: bool = True) -> int:
        """Ask for rows, ascending keys for each group; the number by which to ``take`` the answer."""

    def is_there(self, number: int) -> bool:
        """Whether the answer to a pull has come, and was let in."""

    def take(self, number: int) -> Pulled:
        """The answer to a pull, once. Pulls may be taken in any order."""

    def push(self, step: PushedStep) -> None:
        """Send a step's gradients."""

    def let_in(self) -> None:
        """Handle what has come, without waiting for anything: for a moment that is free."""
