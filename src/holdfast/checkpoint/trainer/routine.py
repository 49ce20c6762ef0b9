"""The saves of a training loop: those due after a step, those a user requests, and the last one before it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.save_plan import SaveRequest
from holdfast.checkpoint.trainer.saver import Saver
from holdfast.checkpoint.trainer.schedule import Schedule
from holdfast.checkpoint.trainer.sigterm import TerminationFlag
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.places import Places
from holdfast.errors import RunError, SaveFailed, Terminated

logger = logging.getLogger("holdfast")

Metered = Callable[[int], Mapping[str, Any]]  # the meter of lost samples, as a checkpoint of this step holds it


class Routine:
    """Counts the steps and saves by two schedules: one of checkpoints, one of the rows that come first between them."""

    def __init__(
        self,
        *,
        saver: Saver,
        outcomes: Outcomes,
        agents: Agents,
        agreement: Agreement,
        checkpoints: Schedule,
        between: Schedule | None,
        termination: TerminationFlag,
        reader: Reader | None,
        tracker: Tracker,
        counts_optimizers: bool,
        metered: Metered | None,
        baseline_first: bool,
    ) -> None:
        self._saver = saver
        self._outcomes = outcomes
        self._agents = agents
        self._agreement = agreement
        self._checkpoints = checkpoints
        self._between = between
        self._termination = termination
        self._reader = reader
        self._places = reader.places if reader is not None else Places()
        self._tracker = tracker
        self._counts_optimizers = counts_optimizers
        self._optimizer_steps = 0  # when step() was called last
        self._optimizer_rounds = 0
        self._told_rounds = False
        self._metered = metered
        self._baseline_due = baseline_first
        self._metrics: Mapping[str, Any] = {}  # of the last batch; not looked at before a save

    @property
    def steps(self) -> int:
        """The current step."""
        return self._checkpoints.step

    def start(self, step: int, *, restored: bool, stepping: bool = False) -> None:
        """Training starts or continues at this step; ``stepping``: optimizer steps were already taken."""
        if not stepping:
            self._missed_rounds()
        self._places.start()
        for schedule in self._schedules():
            schedule.start(step, restored=restored)
        self._baseline_due = self._baseline_due and not restored
        self._saver.start(restored=restored)

    def save_baseline_if_due(self) -> bool:
        """Save before the first interval is over, where a lost part may have to come back by then."""
        due, self._baseline_due = self._baseline_due, False
        if due:
            self._save(force=True)
        return due

    def after_batch(self, metrics: Mapping[str, Any]) -> None:
        """A batch was used. If an optimizer stepped with it, count that and save what is due.

        Raises Terminated, everything saved, once some rank was told to end.
        """
        self._metrics = metrics
        stepped = self._stepped()
        self._places.step(completed=stepped)
        if stepped:
            self._after_step()
        else:
            self._checkpoints.grant()

    def save(self, tag: str | None) -> bool:
        """Save now, whatever is due: what the last optimizer step left, and the place of that step."""
        self._catch_up()
        if self._reader is not None and (why := self._reader.why_not_save) is not None:
            raise RunError(why)
        return self._save(tag=tag, force=True)

    def drain(self) -> None:
        """Wait until the save in progress is committed; raises SaveFailed if that fails.

        One whose snapshot turns out to be of no use is taken again, now; with other ranks, when all of them meet.
        """
        try:
            self._agents.drain()
        except SaveFailed:
            blocked = self._reader is not None and self._reader.why_not_save is not None
            if blocked or self._agreement.world > 1 or not self._outcomes.retakes_at_once:
                raise
            self._save(tag=self._outcomes.retaken_tag, force=True)
            self._agents.drain()

    def finish(self) -> None:
        """Save what is new, unless the reader's state is ahead of the training's, and wait for it.

        New are steps, and whatever else differs from the last checkpoint: weights that were averaged or normalised
        after the last step, a scheduler that was stepped at the end of an epoch.
        """
        self._catch_up()
        has_steps = self._checkpoints.has_news or (self._reader is not None and self._reader.has_news)
        if has_steps:
            self._save_last("the steps")
        self._drain_with_retry()
        if not has_steps and self._saver.has_news():
            self._save_last("the changes")
            self._drain_with_retry()

    def end_if_told(self) -> None:
        """Raise Terminated, once everything is saved, if SIGTERM came to this rank and no step was left to see it."""
        if self._termination.raised:
            self._end()

    def _stepped(self) -> bool:
        """Whether an optimizer stepped since the last call; without any, every batch is a step."""
        if not self._counts_optimizers:
            return True
        before = self._optimizer_steps
        rounds = self._missed_rounds()
        if rounds > 1 and not self._told_rounds:
            self._told_rounds = True
            logger.warning(
                "an optimizer stepped %d times between two calls to step(), which count as one step; call step() "
                "once per batch, after the optimizer",
                rounds,
            )
        return self._optimizer_steps > before

    def _missed_rounds(self) -> int:
        """The optimizer steps since this was asked last: of several optimizers, those of the one that made most."""
        before, self._optimizer_rounds = self._optimizer_rounds, self._tracker.optimizer_rounds
        self._optimizer_steps = self._tracker.optimizer_steps
        return self._optimizer_rounds - before

    def _catch_up(self) -> None:
        """Count the optimizer steps that no step() followed: the weights hold them, so the checkpoint says so."""
        missed = self._missed_rounds()
        if not missed:
            return
        for schedule in self._schedules():
            schedule.step += missed
        self._places.catch_up()
        logger.warning(
            "optimizers took %d steps without a call to step(); they are counted now, at step %d. Call step() once "
            "per batch, after the optimizer: saves happen only there",
            missed,
            self.steps,
        )

    def _after_step(self) -> None:
        for schedule in self._schedules():
            schedule.step += 1
        self._agents.poll()
        if self._checkpoints.agree_on(self._termination.raised):
            self._terminate()
        if not self.save_baseline_if_due():
            self._save_if_due()
        self._checkpoints.grant()

    def _terminate(self) -> None:
        self.finish()
        self._end()

    def _end(self) -> None:
        logger.warning("SIGTERM: saved and committed at step %d; the trainer exits now", self.steps)
        raise Terminated(f"SIGTERM: saved and committed at step {self.steps}")

    def _save_if_due(self) -> None:
        outcomes = self._outcomes
        at_once = outcomes.retakes_at_once and outcomes.in_flight is None
        if self._checkpoints.is_due(may_save=outcomes.may_retry(), retry=outcomes.failed, at_once=at_once):
            self._save(tag=outcomes.retaken_tag, force=self._agreement.any(at_once))
        elif self._between is not None:
            self._save_rows_if_due(self._between)

    def _save_rows_if_due(self, between: Schedule) -> None:
        """The rows that come first. They hold no reader's place, so any step will do."""
        if not between.is_due(may_save=self._outcomes.may_retry(), retry=False):
            return
        self._take(SaveRequest(step=self.steps, priority=True), between.saved)

    def _save(self, *, tag: str | None = None, force: bool = False) -> bool:
        request = self._request(tag)
        if self._reader is not None and self.steps:
            self._reader.warn_gaps(request.place.reader)
        return self._take(request, self._saved, force=force)

    def _take(self, request: SaveRequest, saved: Callable[[], None], *, force: bool = False) -> bool:
        """Snapshot now, and call ``saved``; whether it is taken.

        With several ranks all of them count it as taken once they have agreed on it, also if one cannot take its part:
        else they would not come to the next save together. It then fails like one that cannot be written.
        """
        intent = self._saver.agree(request, force=force)
        if intent is None:
            return False
        taken = self._agreement.world > 1
        try:
            taken = self._saver.take(intent, request) or taken
        finally:
            if taken:
                saved()
        return taken

    def _saved(self) -> None:
        """A checkpoint holds this step."""
        self._baseline_due = False
        if self._reader is not None:
            self._reader.saved()
        for schedule in self._schedules():
            schedule.saved()

    def _request(self, tag: str | None) -> SaveRequest:
        return SaveRequest(
            step=self.steps,
            tag=tag,
            metrics={name: float(value) for name, value in self._metrics.items()},
            place=self._places.here(),
            pls=self._metered(self.steps) if self._metered is not None else None,
        )

    def _save_last(self, what: str) -> None:
        why = self._reader.why_not_save if self._reader is not None else None
        if why is None:
            self._save(force=True)
            return
        logger.warning("%s after step %s are not saved: %s", what, self._checkpoints.saved_step or 0, why)

    def _drain_with_retry(self) -> None:
        """Drain; if the last save failed, on any rank, try it once more before giving up."""
        failure: Exception | None = None
        try:
            self._agents.drain()
        except Exception as error:
            failure = error
        if not self._agreement.any(failure is not None):
            return
        if self._agreement.any(self._outcomes.taken_over is not None):
            raise failure or RunError("another rank found that the run was taken over")
        self._save(force=True)
        self._agents.drain()

    def _schedules(self) -> tuple[Schedule, ...]:
        return (self._checkpoints,) if self._between is None else (self._checkpoints, self._between)
