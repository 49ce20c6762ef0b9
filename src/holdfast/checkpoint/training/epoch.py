"""Epoch: one pass over the data, and the work that follows it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Epoch:
    """One epoch: iterate over it for its remaining batches, then do the work that is due once per epoch.

    That work counts as done when the loop over ``epochs()`` moves to the next epoch, or is left.

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
        """Declare the work of this epoch done, so that a save may follow within the loop's body.

        Raises:
            ReaderError: Its batches were not read to the end.
        """
        self._end()
