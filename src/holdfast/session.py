"""Checkpointer: the one object a training loop holds.

It counts steps, asks the policies, and passes on: rows to the tracker, snapshots to the saver, batches from the reader.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.agreement import Agreement, find_agreement
from holdfast.checkpoint.arguments import (
    as_metric,
    as_models,
    as_optimizers,
    require,
    require_known_tables,
    require_same_tables,
)
from holdfast.checkpoint.buffer import FrameBuffer
from holdfast.checkpoint.capture import Capture
from holdfast.checkpoint.chain import Chain
from holdfast.checkpoint.crew import Progress
from holdfast.checkpoint.launch import Launcher, configuration
from holdfast.checkpoint.partial import PartRecovery, Recovered, Servers
from holdfast.checkpoint.position import Position, SaveStats
from holdfast.checkpoint.priority import RowChooser
from holdfast.checkpoint.reader import Reader
from holdfast.checkpoint.resume import position_of
from holdfast.checkpoint.returning import Returning
from holdfast.checkpoint.saver import Saver, SaveRequest
from holdfast.checkpoint.schedule import Schedule
from holdfast.checkpoint.settings import Settings
from holdfast.checkpoint.sizing import frames_for
from holdfast.checkpoint.snapshot import pin, unpin
from holdfast.checkpoint.state import TrainingState
from holdfast.checkpoint.tables import find_tables
from holdfast.checkpoint.termination import TerminationFlag
from holdfast.checkpoint.tracker import Tracker
from holdfast.errors import ConfigurationError, NotResumed, RunError, Terminated
from holdfast.policy import (
    EverySteps,
    Exact,
    KeepLast,
    Overlap,
    Partial,
    Precision,
    Retention,
    SavePolicy,
    Strategy,
    default_strategy,
)
from holdfast.recovery import Metering
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import MemoryStore, Store, open_store
from holdfast.storage.retry import RetryingStore

logger = logging.getLogger("holdfast")


class Checkpointer:
    """Protects a training loop: see the package's README for the five lines it takes."""

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] = (),
        loader: Any = None,
        extra: Mapping[str, Any] | None = None,
        tables: Mapping[str, nn.Parameter] | None = None,
        save: SavePolicy = EverySteps(1000),  # noqa: B008 - frozen
        strategy: Strategy | None = None,
        precision: Precision = Exact(),  # noqa: B008
        retention: Retention = KeepLast(1),  # noqa: B008
        overlap: Overlap = Overlap.SKIP,
        options: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008
        runtime: Runtime = SYSTEM,
    ) -> None:
        models, optimizers = as_models(model), as_optimizers(optimizer)
        strategy = default_strategy(retention) if strategy is None else strategy
        partial, strategy = (strategy, strategy.consistent) if isinstance(strategy, Partial) else (None, strategy)
        for name, value, kind in (
            ("save", save, SavePolicy),
            ("strategy", strategy, Strategy),
            ("precision", precision, Precision),
            ("retention", retention, Retention),
            ("overlap", overlap, Overlap),
            ("settings", settings, Settings),
        ):
            require(name, value, kind)
        self._settings = settings
        self._runtime = runtime
        self._agreement: Agreement = find_agreement()
        rank, world = self._agreement.rank, self._agreement.world
        opened = _open(url, options)
        self._store = RetryingStore(opened, total_s=settings.retry_s, runtime=runtime)
        self._chain = Chain(self._store, writer=f"rank {rank} of pid {os.getpid()}", runtime=runtime)
        self._tables = find_tables(models, optimizers, tables or {})
        require_same_tables(self._tables, self._agreement)
        require_known_tables(precision, self._tables)
        self._state = TrainingState(models, optimizers, extra or {}, self._tables)
        self._reader = Reader(loader) if loader is not None else None
        self._existing = self._chain.head(skip_damaged=True)
        self._tracker = Tracker(self._tables, optimizers)
        priority = partial.priority if partial is not None else None
        between = save.scaled(priority.r) if priority is not None else None
        self._metering = Metering(partial.budget, loader, world) if partial is not None and partial.budget else None
        self._chooser = RowChooser(priority, self._tables, self._tracker, rank=rank, world=world) if priority else None
        frames, frame_bytes = frames_for(
            self._tables,
            self._state.check(),
            settings.buffer_bytes,
            settings.frame_bytes,
            world=world,
        )
        self._buffer = FrameBuffer.reserve(frames=frames, frame_bytes=frame_bytes)
        self._pinned = any(table.parameter.is_cuda for table in self._tables)
        if self._pinned:
            pin(self._buffer)
        self._saver = Saver(
            capture=Capture(self._tables, self._tracker, self._state, rank=rank, world=world),
            tracker=self._tracker,
            agreement=self._agreement,
            strategy=strategy,
            precision=precision,
            overlap=overlap,
            buffer=self._buffer,
            launch=Launcher(
                self._buffer,
                configuration(self._store.url, options, self._agreement, retention, strategy, settings),
                opened if _is_of_this_process(url, opened) else None,
                runtime=runtime,
            ),
            chooser=self._chooser,
            runtime=runtime,
        )
        self._returning = Returning(
            self._store,
            self._chain,
            self._agreement,
            tables=self._tables,
            state=self._state,
            tracker=self._tracker,
            reader=self._reader,
            runtime=runtime,
        )
        self._recovery = PartRecovery(
            self._store, self._chain, self._tables, self._tracker, self._chooser, runtime=runtime
        )
        self._counts_optimizer_steps = bool(optimizers)
        self._optimizer_steps = 0
        self._started = False
        self._closed = False
        self._schedule = Schedule(save, self._agreement, self._reader, runtime)
        self._between = Schedule(between, self._agreement, None, runtime) if between is not None else None
        self._baseline_due = partial is not None  # a lost part may have to come back before the first interval is over
        self._accumulating = False
        self._metrics: dict[str, Any] = {}
        self._termination = TerminationFlag(install=settings.handle_sigterm)

    # ---- the loop ------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimizer steps taken, over all restarts."""
        return self._schedule.step

    @property
    def stats(self) -> SaveStats:
        """What saving has cost so far."""
        return self._saver.stats

    @property
    def agent_pid(self) -> int | None:
        """The agent's process; None before the first step and where the agent is a thread."""
        return self._saver.agent_pid

    def resume(
        self,
        step: int | None = None,
        *,
        reader: bool = True,
        strict: bool = True,
        progress: Progress | None = None,
    ) -> int:
        """Continue from the newest good checkpoint, or from that of ``step``; a fresh start on an empty run.

        Returns the step training stands at. ``reader=False`` leaves the loader and the random state as they are and
        ``strict=False`` restores what fits: for transfer learning.
        """
        if self._started:
            raise RunError("resume() comes once, before the first step")
        term = self._returning.take_over(step, patience_s=self._settings.takeover_s)
        restored = self._returning.restore(step, strict=strict, progress=progress)
        if restored is None:
            if step is not None:
                raise RunError(f"{self._store.url} holds no checkpoint to resume from")
            self._start(Position(term=term))
            return 0
        if reader:
            self._returning.restore_reader(restored.local)
        self._start(position_of(restored, term), step=restored.info.step, pls=restored.local.get("pls"))
        return self.steps

    def batches(self, epochs: int | None = 1) -> Iterator[Any]:
        """The loader's batches, continuing where the checkpoint stopped; ``epochs`` counts from the very start."""
        if self._reader is None:
            raise ConfigurationError("batches() needs the data loader: pass loader= to Checkpointer")
        self._ensure_started()
        return self._reader.batches(epochs, on_iterator=self._returning.restore_rng)

    def step(self, loss: Tensor | float | None = None, **metrics: Tensor | float) -> None:
        """Call once a batch, after the optimizer. Saves when a save is due; never forces a device sync otherwise.

        While gradients are accumulated (no optimizer stepped since the last call) nothing is counted or saved.
        """
        self._ensure_started(stepping=True)
        if loss is not None:
            metrics["loss"] = loss
        self._metrics = {name: as_metric(name, value) for name, value in metrics.items()}
        if self._reader is not None:
            self._reader.used()
        self._accumulating = not self._stepped()
        if self._accumulating:
            return
        self._schedule.step += 1
        if self._between is not None:
            self._between.step = self.steps
        self._saver.poll()
        if self._schedule.agree_on(self._termination.raised):
            self._terminate()
        if self._baseline_due:
            self._save_baseline()
        elif self._schedule.is_due(may_save=self._saver.may_retry(), retry=self._saver.failed):
            self._save(tag=None, force=False)
        else:
            self._save_rows_if_due()
        self._schedule.grant()

    def save(self, tag: str | None = None, *, wait: bool = False) -> bool:
        """Save now; ``wait`` returns only when it is committed (and raises SaveFailed if it is not)."""
        self._ensure_started()
        if not self._schedule.at_boundary:
            raise RunError("the reader has batches in flight that no step has used; save() works before it reads on")
        if self._accumulating:
            raise RunError("gradients are being accumulated: save() after the optimizer's step and the step() after it")
        taken = self._save(tag=tag, force=True)
        if wait:
            self._saver.drain()
        return taken

    def recover(self, servers: Sequence[int], *, of: int, progress: Progress | None = None) -> Recovered:
        """Bring back what ``servers`` of ``of`` held, from the newest rows saved, and let everything else go on.

        Server i of n holds the i-th of n equal, contiguous ranges of every table's rows. What comes back counts as
        changed, and what the rows had learnt since as lost samples. All ranks of a job call this at the same step.
        """
        lost = Servers(numbers=tuple(servers), of=of)
        self._ensure_started()
        self._saver.settle()
        recovered = self._recovery.recover(lost, progress=progress)
        if self._metering is None:
            return recovered
        saved_step = self._saver.position.step
        self.stats.pls = self._metering.failed(self.steps, saved_step=saved_step, lost_share=lost.share)
        return replace(recovered, pls=self.stats.pls)

    def recover_fully(self, *, reader: bool = True, progress: Progress | None = None) -> int:
        """Go back to the last checkpoint, everything, without a new process; the step training stands at.

        What ``recover`` is compared with. The loop over ``batches()`` must have been left, unless ``reader=False``.
        """
        self._ensure_started()
        if reader and self._reader is not None and self._reader.is_live:
            raise RunError("leave the loop over batches() before recover_fully(), and begin it again after it")
        self._saver.settle()
        restored = self._returning.restore(None, strict=True, progress=progress)
        if restored is None:
            raise RunError(f"{self._store.url} holds no checkpoint to go back to yet")
        if reader:
            self._returning.restore_reader(restored.local)
        self._stand_at(restored.info.step, restored=True, pls=restored.local.get("pls"))
        self._saver.go_on(position_of(restored, self._saver.position.term))
        return self.steps

    def emulate_failure(self, servers: Sequence[int], *, of: int) -> None:
        """For emulation: overwrite with NaN what ``servers`` of ``of`` hold, as their failure would."""
        self._ensure_started()
        self._recovery.lose(Servers(numbers=tuple(servers), of=of))

    def mark(self, table: str, ids: Tensor | None = None) -> None:
        """Say that rows were changed behind PyTorch's back (through ``.data``); None: all rows of the table."""
        self._tracker.mark(table, ids)

    def annotate(self, **metrics: float) -> None:
        """Attach metrics that arrived after the save (an evaluation's AUC) to the last committed checkpoint."""
        self._saver.poll()
        if (checkpoint := self._saver.position.checkpoint) is None:
            raise RunError("there is no committed checkpoint to attach metrics to yet")
        self._saver.annotate(checkpoint, {name: float(value) for name, value in metrics.items()})

    def drain(self, *, arranged: bool = False) -> None:
        """Wait until the save under way is committed; raises SaveFailed if it was not.

        ``arranged`` waits for the grid as well, until no increment is due for rearrangement.
        """
        self._saver.drain()
        if arranged:
            self._saver.arrange()

    def close(self) -> None:
        """Save what is new, wait for it, end the agent. Raises SaveFailed if the last state is not committed."""
        if self._closed:
            return
        try:
            if self._started and self._schedule.has_news:
                self._save_the_rest()
            self._drain_with_retry()
        finally:
            self._release()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            if not self._closed:
                self._saver.drain()
        except Exception as failure:
            logger.warning("while leaving because of an error: %s", failure)
        finally:
            self._release()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _start(
        self, position: Position, *, step: int = 0, pls: Mapping[str, Any] | None = None, stepping: bool = False
    ) -> None:
        self._saver.start(position)
        restored = position.checkpoint is not None
        self._stand_at(step, restored=restored, pls=pls)
        self._baseline_due = self._baseline_due and not restored
        self._started = True
        if self._baseline_due and not stepping:
            self._save_baseline()

    def _stand_at(self, step: int, *, restored: bool, pls: Mapping[str, Any] | None) -> None:
        """Training begins, or goes on, at this step."""
        self._schedule.start(step, restored=restored)
        if self._between is not None:
            self._between.start(step, restored=restored)
        if self._metering is not None:
            self._metering.restore(pls, step)
            self.stats.pls = self._metering.meter.pls

    def _ensure_started(self, *, stepping: bool = False) -> None:
        """``stepping``: the first step was made already, so that this is not the state before it."""
        if self._closed:
            raise RunError("this Checkpointer is closed")
        if self._started:
            return
        if self._existing is not None and self._existing.entries:
            newest = self._existing.entries[-1].info.step
            raise NotResumed(
                f"{self._store.url} already holds checkpoints (up to step {newest}): call resume() before the first "
                "step, or give this training a URL of its own"
            )
        self._start(Position(term=self._returning.take_over()), stepping=stepping)

    def _stepped(self) -> bool:
        if not self._counts_optimizer_steps:
            return True
        before, self._optimizer_steps = self._optimizer_steps, self._tracker.optimizer_steps
        return self._optimizer_steps > before

    def _save(self, *, tag: str | None, force: bool) -> bool:
        if self._reader is not None and self.steps:
            self._reader.warn_gaps()
        request = SaveRequest(
            step=self.steps,
            tag=tag,
            metrics={name: float(value) for name, value in self._metrics.items()},
            reader=self._reader.state() if self._reader is not None else None,
            pls=self._metering.state(self.steps) if self._metering is not None else None,
        )
        taken = self._saver.save(request, force=force)
        if taken:
            self._schedule.saved()
            if self._between is not None:
                self._between.saved()
        return taken

    def _save_baseline(self) -> None:
        self._baseline_due = False
        self._save(tag=None, force=True)

    def _save_rows_if_due(self) -> None:
        """Between two checkpoints, the rows that come first. They hold no reader's place, so any step will do."""
        if self._between is None or not self._between.is_due(may_save=self._saver.may_retry(), retry=False):
            return
        if self._saver.save(SaveRequest(step=self.steps, priority=True)):
            self._between.saved()

    def _save_the_rest(self) -> None:
        """Save before leaving, unless the reader's state is ahead of the training's."""
        if self._schedule.at_boundary:
            self._save(tag=None, force=True)
            return
        logger.warning(
            "the steps after step %s are not saved: the reader was left in the middle of the batches it was granted",
            self._schedule.saved_step or 0,
        )

    def _drain_with_retry(self) -> None:
        """Drain; if the last save failed, on any rank, try it once more before giving up."""
        if not self._started:
            return
        failure: Exception | None = None
        try:
            self._saver.drain()
        except Exception as error:
            failure = error
        if not self._agreement.any(failure is not None):
            return
        if self._agreement.any(self._saver.taken_over is not None):
            raise failure or RunError("another rank was told that the run was taken over")
        self._save(tag=None, force=True)
        self._saver.drain()

    def _terminate(self) -> None:
        if self._schedule.has_news:
            self._save(tag=None, force=True)
        self._drain_with_retry()
        logger.warning("SIGTERM: saved and committed at step %d; the trainer ends now", self.steps)
        raise Terminated(f"SIGTERM: saved and committed at step {self.steps}")

    def _release(self) -> None:
        """Give everything back, last the handler, first the agent; each even if one before it raises."""
        self._closed = True
        with ExitStack() as stack:
            stack.callback(self._termination.restore)
            stack.callback(self._buffer.close)
            if self._pinned:
                stack.callback(unpin, self._buffer)
            stack.callback(self._tracker.close)
            stack.callback(self._saver.close)


def _is_of_this_process(url: str | os.PathLike[str] | Store, opened: Store) -> bool:
    """Whether no other process could open the store: then the agent is a thread of this one."""
    return not isinstance(url, str | os.PathLike) or isinstance(opened, MemoryStore)


def _open(url: str | os.PathLike[str] | Store, options: Mapping[str, str] | None) -> Store:
    if isinstance(url, str | os.PathLike):
        return open_store(url, options=options)
    return url
