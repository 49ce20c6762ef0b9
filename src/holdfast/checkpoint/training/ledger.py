"""Counts which of the batches handed out have reached the weights."""

from __future__ import annotations

_MOST_AHEAD = (
    64  # batches; what takes more before its first step() does not take them ahead, it calls step() too rarely
)


class Ledger:
    """Pairs batches with ``step()`` calls: each call is for the oldest batch that none was made for yet.

    A consumer may take batches ahead of their steps (Lightning takes one where it knows no length). How many it takes
    shows before its first ``step()`` in a loop. A batch beyond that between two calls has none of its own: it was
    skipped, or one call is made for several batches; it counts as used with the next call.
    """

    def __init__(self) -> None:
        self.handed_out = 0
        self.used = 0  # of those, the ones that a step() was called for
        self.completed = 0  # of those, the ones that are in the weights: an optimizer stepped since
        self.skipped = 0  # of those that are used, the ones without a step() of their own
        self._most = 1  # batches without a step() when one is called: that one's and those taken ahead
        self._steps = 0  # calls of step() in this loop
        self._taken = 0  # batches since the last one

    def start(self, batches: int) -> None:
        """This many batches were handed out, and all have reached the weights."""
        self.handed_out = self.used = self.completed = batches
        self.begin_loop()

    def begin_loop(self) -> None:
        """A new consumer: what an earlier one took and did not use, it never will."""
        self.skipped += self.handed_out - self.used
        self.used = self.handed_out
        self._most, self._steps, self._taken = 1, 0, 0

    def drop_ahead(self) -> None:
        """What was taken ahead comes from a pass that is over: it is neither used nor missed."""
        self.used = self.handed_out

    def hand_out(self) -> None:
        """A batch goes to the consumer."""
        self.handed_out += 1
        self._taken += 1

    def step(self) -> None:
        """``step()`` was called."""
        waiting = self.handed_out - self.used
        if self._steps == 0:
            self._most = waiting if 0 < waiting <= _MOST_AHEAD else 1
        elif self._steps == 1 and self._taken == self._most:
            self._most = 1  # as many again: one step() for several batches, and none ahead
        passed_over = max(0, waiting - self._most)
        self.skipped += passed_over
        self.used += passed_over + min(1, waiting)
        self._steps += 1
        self._taken = 0

    def catch_up(self) -> None:
        """All batches were used, though ``step()`` was not called for them."""
        self.used = self.handed_out
        self._taken = 0

    def complete(self) -> None:
        """The batches used so far are in the weights."""
        self.completed = self.used

    @property
    def may_be_ahead(self) -> bool:
        """Whether the next batch may be one that is taken ahead."""
        return 0 < self.handed_out - self.used < _MOST_AHEAD
