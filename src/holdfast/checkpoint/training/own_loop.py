"""Batches for a library that has a loop of its own: a batch is trained when the loop asks for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.checkpoint.training.batches import Reader


class OwnLoop:
    """Makes the calls that such a loop does not make.

    The last batch of an epoch counts when the next epoch begins: until then the loop does what is due once an epoch,
    which a resume could not enter half-way. So no resumed epoch is without batches, which few loops expect.

    ``one_pass`` opens an epoch, ``step`` tells that a batch was trained, and saves what is due.
    """

    def __init__(self, reader: Reader, one_pass: Callable[[], Iterator[Any]], step: Callable[[], object]) -> None:
        self._reader = reader
        self._one_pass = one_pass
        self._step = step
        self._batches: Iterator[Any] | None = None
        self._is_pending = False  # a batch that was not told of

    def read(self) -> Iterator[Any]:
        """One epoch."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self._batches = self._one_pass()
        return self._asked(self._batches)

    def settle(self) -> None:
        """Nothing more is done with the last batch."""
        is_pending, self._is_pending = self._is_pending, False
        if is_pending:
            self._step()

    def _asked(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.settle()
        for batch in batches:
            self._is_pending = True
            yield batch
            if not self._reader.at_end_of_pass:
                self.settle()
