"""Where a training is in its data, as of the last optimizer step: exactly the batches that the weights hold."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.training.data_place import DataPlace, ReaderState
from holdfast.checkpoint.training.ledger import Ledger
from holdfast.checkpoint.training.rng import capture_rng, drawing_from

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    batches: int  # in the weights
    place: DataPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """A batch was asked for before the one handed out last was used."""

    reader: ReaderState | None  # before it was fetched
    rng: Mapping[str, Any]  # which fetching it drew from


class Places:
    """Keeps the place of the last completed step for as long as batches are handed out or accumulated beyond it.

    A save is what it would have been right after the last optimizer step: batches that are in no weight come again.
    Those that had been taken ahead of that step are fetched again with the random numbers of then.

    ``state`` tells how the reader goes on after the batch handed out last; later batches do not change it. Where it is
    not known to be ``cheap``, places are kept from the first batch on that no optimizer step followed.
    """

    def __init__(self, state: Callable[[], ReaderState | None] | None = None, *, cheap: bool = False) -> None:
        self._state = state
        self._keeps = cheap
        self._ledger = Ledger()
        self._mark: _Mark | None = None
        self._asks: dict[int, _Ask] = {}  # by the batches handed out before
        self._drawn: deque[Mapping[str, Any]] = deque()  # what fetching the next batches drew from before the save
        self._told_skipped = 0

    # ---- the reader's side ---------------------------------------------------------------------------------------

    @property
    def handed_out(self) -> int:
        """Batches handed out, across all restarts."""
        return self._ledger.handed_out

    def load(self, reader: ReaderState, rng: Mapping[str, Any] | None) -> None:
        """Go on from a place that was saved."""
        self._ledger.start(reader["batches"])
        self._asks.clear()
        self._drawn = deque(reader["drawn"])
        self._mark = _Mark(batches=self._ledger.completed, place=DataPlace(reader=reader, rng=rng))

    def begin_loop(self) -> None:
        """Somebody begins to take batches."""
        self._ledger.begin_loop()
        self._asks.clear()
        if self._ledger.handed_out == 0:
            self._mark = self._mark_here()

    def leave_pass(self) -> None:
        """The pass is over: nobody will use what was taken ahead of it."""
        self._ledger.drop_ahead()
        self._asks.clear()

    def ask(self) -> None:
        """A batch is about to be fetched."""
        if self._ledger.may_be_ahead:
            rng = self._drawn[0] if self._drawn else capture_rng(cuda=False)
            self._asks[self._ledger.handed_out] = _Ask(reader=self._reader_state(), rng=rng)

    def drawing(self) -> AbstractContextManager[None]:
        """Fetching draws from here on, unless it did so before the save: then from there, and the run loses nothing."""
        return drawing_from(self._drawn[0]) if self._drawn else nullcontext()

    def hand_out(self) -> None:
        """A batch was fetched."""
        self._ledger.hand_out()
        if self._drawn:
            self._drawn.popleft()

    # ---- the loop's side -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Training starts or continues with what is in the weights now."""
        self._ledger.complete()
        if self._mark is None or self._mark.batches != self._ledger.completed:
            self._mark = self._mark_here()

    def step(self, *, completed: bool) -> None:
        """``step()`` was called; ``completed``: an optimizer stepped before it, no gradient is waiting."""
        if self._state is None:
            self._ledger.hand_out()  # nobody else counts them
        self._ledger.step()
        if completed:
            self._complete()
        else:
            self._keeps = True

    def catch_up(self) -> None:
        """Count everything handed out as used, though ``step()`` was not called for it."""
        self._ledger.catch_up()
        self._complete()

    def here(self) -> DataPlace:
        """The place to save: after the batches that are in the weights."""
        ledger = self._ledger
        if ledger.used == ledger.completed and self._is_known(ledger.completed):
            return DataPlace(reader=self._after(ledger.completed), rng=None)
        if self._mark is not None and self._mark.batches == ledger.completed:
            return self._mark.place
        self._tell_lost(ledger.handed_out - ledger.completed)
        return DataPlace(reader=self._reader_state(), rng=None)

    def tell_skipped(self) -> None:
        """Say which batches a resume would skip: it would be too late then."""
        skipped, self._told_skipped = self._ledger.skipped - self._told_skipped, self._ledger.skipped
        if skipped:
            logger.warning(
                "%d batches were taken from batches() without a call to step(): they count as used, and a resume "
                "does not repeat them. Call step() once for every batch, including one that is skipped or only "
                "accumulates gradients",
                skipped,
            )

    # ---- inside --------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        before = self._ledger.completed
        self._ledger.complete()
        completed = self._ledger.completed
        for batches in [batches for batches in self._asks if batches < completed]:
            del self._asks[batches]
        self._keeps |= completed - before > 1
        self._mark = self._mark_here() if self._keeps else None

    def _mark_here(self) -> _Mark | None:
        completed = self._ledger.completed
        if not self._is_known(completed):
            return None
        return _Mark(batches=completed, place=DataPlace(reader=self._after(completed), rng=capture_rng()))

    def _tell_lost(self, batches: int) -> None:
        self._keeps = True
        consequence = "the current random state is saved" if self._state is None else "a resume does not repeat them"
        logger.warning(
            "%d batches since the last optimizer step have not reached the weights, and the position before them was "
            "not kept, because until now an optimizer stepped after every batch: %s",
            batches,
            consequence,
        )

    def _is_known(self, batches: int) -> bool:
        return all(number in self._asks for number in range(batches, self._ledger.handed_out))

    def _after(self, batches: int) -> ReaderState | None:
        ahead = range(batches, self._ledger.handed_out)
        reader = self._asks[batches].reader if ahead else self._reader_state()
        if reader is None:
            return None
        return {**reader, "drawn": [*(self._asks[number].rng for number in ahead), *self._drawn]}

    def _reader_state(self) -> ReaderState | None:
        return self._state() if self._state is not None else None
