"""When to save: asks the policy, and makes sure that all ranks reach the same answer at the same step."""

from __future__ import annotations

from dataclasses import replace

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.training.batches import Reader
from holdfast.policy import SaveContext, SavePolicy
from holdfast.runtime import Runtime

_MEET_EVERY = 16  # steps between the points at which ranks compare clocks and signals
_LARGEST_GRANT = 2**31


class Schedule:
    """Knows the last save and the current step; one per training loop."""

    def __init__(self, policy: SavePolicy, agreement: Agreement, reader: Reader | None, runtime: Runtime) -> None:
        self._policy = policy
        self._agreement = agreement
        self._reader = reader
        self._runtime = runtime
        self._last = (0, runtime.monotonic_s())
        self.step = 0
        self.saved_step: int | None = None  # the last step of which a snapshot was taken or restored

    @property
    def at_boundary(self) -> bool:
        """Whether a checkpoint may be taken: no batch is in flight, and no epoch's work is under way."""
        return self._reader is None or self._reader.why_not_save is None

    @property
    def has_news(self) -> bool:
        """Whether a step was made since the last snapshot."""
        return self.saved_step != self.step

    def start(self, step: int, *, restored: bool) -> None:
        """Training starts or continues at this step."""
        self.step = step
        self.saved_step = step if restored else None
        self._last = (step, self._runtime.monotonic_s())
        self.grant()

    def saved(self) -> None:
        """A snapshot of this step was taken."""
        self.saved_step = self.step
        self._last = (self.step, self._runtime.monotonic_s())

    def is_due(self, *, may_save: bool, retry: bool, at_once: bool = False) -> bool:
        """Whether to save now. ``may_save``: no pause after a failure; ``retry``: the last one failed.

        ``at_once``: this rank cannot wait for another decision. Otherwise the first one's counts.
        """
        if not self.at_boundary:
            return False
        wanted = at_once or (may_save and (retry or self._policy.due(self._context())))
        if self._agreement.world == 1:
            return wanted
        if self._steps_until_due() == 0:
            return True  # counted in steps: every rank knows by itself, and rank 0 decides whether to skip it
        return self._ranks_meet() and self._agreement.any(at_once or (wanted and self._agreement.rank == 0))

    def agree_on(self, flag: bool) -> bool:
        """Whether some rank has the flag up, asked only where a save is possible and ranks meet."""
        if not self.at_boundary:
            return False
        if self._agreement.world == 1:
            return flag
        return self._ranks_meet() and self._agreement.any(flag)

    def grant(self) -> None:
        """Tell a reader that reads ahead how far it may go: to the next save, none in flight across it."""
        if self._reader is not None and self._reader.reads_ahead and self._reader.at_boundary:
            steps = self._steps_until_due()
            self._reader.grant(max(1, min(_MEET_EVERY if steps is None else steps, _LARGEST_GRANT)))

    def _context(self) -> SaveContext:
        step, at_s = self._last
        return SaveContext(step=self.step, now_s=self._runtime.monotonic_s(), last_save_step=step, last_save_s=at_s)

    def _steps_until_due(self) -> int | None:
        """As the policy says; with several ranks as if no time had passed, because their clocks differ."""
        context = self._context()
        if self._agreement.world > 1:
            context = replace(context, now_s=context.last_save_s)
        return self._policy.steps_until_due(context)

    def _ranks_meet(self) -> bool:
        """Whether ranks compare clocks and signals at this step; all of them must know that by themselves."""
        if self._reader is not None and self._reader.reads_ahead:
            return self._reader.at_boundary
        return self.step % _MEET_EVERY == 0
