"""Epoch: one pass over the data, and the work that is due once after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Epoch:
    """Iterate over it for the batches that are still to come, then do what is due once an epoch.

    The work after the batches is over when the loop over ``epochs()`` turns to the next epoch, or is left.

    Attributes:
        number: Counted from 0, from the very start of the training.
    """

    def __init__(self, number: int, batches: Iterator[Any], end: Callable[[], None]) -> None:
        self.number = number
        self._batches = batches
        self._end = end

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __repr__(self) -> str:
        return f"Epoch({self.number})"

    def finish(self) -> None:
        """Say that the work of this epoch is over already, so that a save may follow within the loop's body.

        Raises:
            ReaderError: Its batches were not read to their end.
        """
        self._end()
