"""Checkpointer: the one object a training loop holds.

Thin: ``assembly`` builds its parts, ``routine`` counts steps and saves, ``resumption`` restores.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from holdfast.checkpoint.ranks.process_group import find_agreement
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.restore.division import as_slots
from holdfast.checkpoint.restore.partial import Recovered, Servers
from holdfast.checkpoint.trainer.arguments import (
    Declared,
    TrainingArguments,
    as_metric,
    as_models,
    as_optimizers,
    as_row_local,
)
from holdfast.checkpoint.trainer.assembly import Assembly
from holdfast.checkpoint.trainer.pls_account import PlsAccount
from holdfast.checkpoint.trainer.policies import RunLocation, as_policies, require
from holdfast.checkpoint.trainer.position import Position, SaveStats
from holdfast.checkpoint.trainer.resume import position_of
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.trainer.unclosed import warn_unless_closed
from holdfast.checkpoint.training.epoch import Epoch
from holdfast.checkpoint.training.keyed import KeyedTable
from holdfast.checkpoint.training.keyed_rows import as_keyed
from holdfast.checkpoint.training.own_loop import OwnLoop
from holdfast.checkpoint.training.stand_in import StandIn
from holdfast.errors import ConfigurationError, RunError
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken
from holdfast.hooks import EventQueue, Hooks
from holdfast.integrations.torchrec import find_divided, find_keyed
from holdfast.policy import EverySteps, Exact, KeepLast, Overlap, Precision, Retention, SavePolicy, Strategy
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

logger = logging.getLogger("holdfast")


class Checkpointer:
    """Saves a training loop's state while it runs, and restores it after a restart.

    Use it as a context manager around the loop: call ``resume()`` once before the first step, take batches from
    ``batches()``, and call ``step()`` after each of them. Leaving the block normally saves what is new and waits until
    it is committed; leaving it with an exception saves nothing new and waits for the save in progress.

    With several processes, initialise ``torch.distributed`` first. Every rank then creates the same ``Checkpointer``
    and calls the same methods at the same steps.

    Args:
        url: Where the run is kept: a local path, ``file://``, ``s3://``, ``gs://``, ``az://`` or ``abfs://``, or a
            ``Store`` object. Each training needs its own URL.
        model: The model, or several by name; the names become prefixes of table names. Tables are discovered
            automatically: every ``nn.Embedding`` and ``nn.EmbeddingBag``. Wrappers (DDP, ``torch.compile``) are fine,
            and so are models that are divided over the ranks: DTensors, as under FSDP2 (``fully_shard``) and tensor
            parallelism, and TorchRec's ``DistributedModelParallel``.
        optimizer: The optimizer, or all of them. A third-party optimizer that moves only rows with a gradient can be
            declared with ``RowLocal``, so that only the changed rows of its tables are saved.
        loader: The data loader that ``batches()`` reads and whose position is saved: a ``StatefulDataLoader``, or
            another iterable with ``state_dict()`` and ``load_state_dict()``. For a plain ``DataLoader`` over a
            map-style dataset the sampler is replayed. None: the position is not saved.
        extra: Additional state by name, saved and restored in full: objects with ``state_dict()`` and
            ``load_state_dict()`` (schedulers, gradient scalers, your own) and ``torch.Generator`` objects.
        tables: Additional embedding tables by name: parameters that are in no ``nn.Embedding``.
        keyed: Tables whose rows are found by keys, by name: each a ``KeyedTable``. Managed collision modules of
            TorchRec in the model are found automatically.
        save: When a save is due: ``EverySteps``, ``EveryMinutes``, ``Never``, joined by ``|`` and ``&``.
        strategy: What a checkpoint holds: ``Full``, ``OneShot``, ``Consecutive``, ``Intermittent``, ``Grid`` or
            ``Partial``. None: ``Grid`` if ``retention`` is ``KeepAll`` or ``TimeToLive``, otherwise ``Intermittent``.
        precision: How precisely rows are stored: ``Exact``, ``Bits``, ``Auto``, ``PaperTable`` or ``PerTable``.
            Training keeps its own precision, and everything but table rows is always stored exactly.
        retention: Which checkpoints are kept: ``KeepLast``, ``KeepBest``, ``KeepEvery``, ``KeepTagged``,
            ``TimeToLive``, ``KeepAll``, joined by ``|`` and ``&``. Keep at least two to have one to fall back on.
        overlap: What to do when a save is due while the previous one is still being written: an ``Overlap``.
        on_save: Called with a ``SnapshotTaken`` once a save has been copied. All four hooks are called on the training
            thread, at the end of a call to this object; a hook that raises is logged once. See ``holdfast.events``.
        on_commit: Called with a ``SaveCommitted`` once a save is committed.
        on_failure: Called with a ``SaveGivenUp`` when a save is given up; training continues.
        on_recover: Called with a ``Recovery`` after ``resume()``, ``recover()`` or ``recover_fully()`` restored state.
        options: Object store client options, such as ``region`` or ``endpoint``. They take precedence over environment
            variables and are never stored.
        settings: Buffer sizes, timeouts and the agent's priority, which rarely need changing: a ``Settings``.

    Raises:
        ConfigurationError: An argument is not valid, a value cannot be stored without pickle, or the model is sharded
            over the ranks in a way that is not supported.
        RanksMissing: Other ranks did not create their Checkpointer in time.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Declared | Sequence[Declared] = (),
        loader: Any = None,
        extra: Mapping[str, Any] | None = None,
        tables: Mapping[str, nn.Parameter] | None = None,
        keyed: Mapping[str, KeyedTable] | None = None,
        save: SavePolicy = EverySteps(1000),  # noqa: B008 - frozen
        strategy: Strategy | None = None,
        precision: Precision = Exact(),  # noqa: B008
        retention: Retention = KeepLast(1),  # noqa: B008
        overlap: Overlap = Overlap.SKIP,
        on_save: Callable[[SnapshotTaken], object] | None = None,
        on_commit: Callable[[SaveCommitted], object] | None = None,
        on_failure: Callable[[SaveGivenUp], object] | None = None,
        on_recover: Callable[[Recovery], object] | None = None,
        options: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008
    ) -> None:
        training = TrainingArguments(
            models=(models := as_models(model)),
            optimizers=as_optimizers(optimizer),
            row_local=as_row_local(optimizer),
            loader=loader,
            extra=extra or {},
            tables=tables or {},
            keyed=(*as_keyed(keyed), *find_keyed(models)),
        )
        policies = as_policies(save=save, strategy=strategy, precision=precision, retention=retention, overlap=overlap)
        require("settings", settings, Settings)
        agreement = find_agreement(settings.ranks_s)
        budget = policies.partial.budget if policies.partial is not None else None
        self._metering = PlsAccount(budget, loader, agreement.world) if budget is not None else None
        metered = self._metering.state if self._metering is not None else None
        divided = find_divided(training.models, agreement)
        place = RunLocation(url=url, options=options)
        hooks = Hooks(on_save=on_save, on_commit=on_commit, on_failure=on_failure, on_recover=on_recover)
        self._events = EventQueue(hooks)
        assembly = Assembly(
            place,
            training,
            policies,
            settings,
            agreement,
            divided=divided,
            metered=metered,
            tell=self._events.tell,
            runtime=self._runtime,
        )
        self._parts = parts = assembly.parts()
        self._store = parts.store
        self._reader = parts.reader
        self._outcomes = parts.outcomes
        self._agents = parts.agents
        self._routine = parts.routine
        self._takeover_s = settings.takeover_s
        self._loader = loader
        self._own_loop: OwnLoop | None = None
        self._started = False
        self._closed = False
        self._count_as_closed: Callable[[], object] = lambda: None

    # ---- the loop ------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimizer steps taken, across all restarts."""
        return self._routine.steps

    @property
    def epoch(self) -> int:
        """Epochs that are over, across all restarts: the number, from 0, of the one that the next batch belongs to."""
        if self._reader is None:
            raise ConfigurationError("epoch needs the data loader: pass loader= to Checkpointer")
        return self._reader.next_epoch

    @property
    def stats(self) -> SaveStats:
        """What saving has cost so far."""
        return self._outcomes.stats

    @property
    def agent_pid(self) -> int | None:
        """The agent's process id; None before the first step, or if the agent is a thread."""
        return self._agents.pid

    def resume(
        self,
        step: int | None = None,
        *,
        reader: bool = True,
        strict: bool = True,
        slots: Literal["exact", "mean"] = "exact",
        progress: Progress | None = None,
    ) -> int:
        """Continue from a checkpoint, or start fresh on an empty run. Call it only once, before the first step.

        A damaged checkpoint is skipped, with a warning. If the previous trainer's agent is still writing, this waits
        for it, then takes over the run: earlier writers can no longer commit.

        Args:
            step: The step to go back to; later checkpoints become an abandoned timeline. None: the newest good one.
            reader: False leaves the loader's position and the random state as they are, for training on other data.
            strict: False restores the tables and parameters that match by name and shape and warns about the rest.
            slots: What to do where a plan of TorchRec splits columns differently than before, and the optimizer keeps
                one sum per row and column shard. ``"exact"`` refuses; ``"mean"`` takes the mean of the shards' sums,
                which is not what training without a change would have had.
            progress: Called periodically with the bytes read since the last call.

        Returns:
            The current step of the training: 0 on an empty run.
        """
        if self._started:
            raise RunError("call resume() only once, before the first step")
        resumption, since_s = self._parts.resumption, self._outcomes.now_s
        with self._events:
            term = resumption.take_over(step, patience_s=self._takeover_s)
            restored = resumption.restore(step, strict=strict, slots=as_slots(slots), progress=progress)
            if restored is None:
                if step is not None:
                    raise RunError(f"{self._store.url} holds no checkpoint to resume from")
                self._start(Position(term=term))
                return 0
            if reader:
                resumption.restore_reader(restored.rank)
            self._start(position_of(restored, term), pls=restored.job.pls)
            what = Happening.TOOK_OVER if step is None else Happening.WENT_BACK
            self._outcomes.recovered(what, step=self.steps, checkpoint_step=self.steps, since_s=since_s)
            return self.steps

    def batches(self, epochs: int | None = 1) -> Iterator[Any]:
        """The loader's batches, continuing where the checkpoint stopped.

        Args:
            epochs: Passes over the data, counted from the very start of the training. None: unlimited.
        """
        if self._reader is None:
            raise ConfigurationError("batches() needs the data loader: pass loader= to Checkpointer")
        self._ensure_started()
        return self._reader.batches(epochs, on_iterator=self._parts.resumption.restore_rng)

    def epochs(self, epochs: int) -> Iterator[Epoch]:
        """The remaining epochs, each an iterable of its batches, continuing where the checkpoint stopped.

        Code after the loop over an epoch's batches runs once per epoch: a resume neither repeats nor skips it. No
        checkpoint is taken while it runs; call ``finish()`` on the epoch before a ``save()`` there.

        Args:
            epochs: Passes over the data, counted from the very start of the training.
        """
        if self._reader is None:
            raise ConfigurationError("epochs() needs the data loader: pass loader= to Checkpointer")
        self._ensure_started()
        return self._reader.epochs(epochs, on_iterator=self._parts.resumption.restore_rng)

    def one_pass(self, *, anew: bool = False) -> Iterator[Any]:
        """One epoch's batches, for loops that count epochs themselves: the rest of the epoch after a resume.

        Every further call begins a new epoch, even if batches of the last one were left: epochs may be cut short.

        Args:
            anew: Begin a new epoch after a resume, too, because the loop knows the saved one to be over.
        """
        if self._reader is None:
            raise ConfigurationError("one_pass() needs the data loader: pass loader= to Checkpointer")
        self._ensure_started()
        return self._reader.one_pass(anew=anew, on_iterator=self._parts.resumption.restore_rng)

    def as_loader(self, metrics: Callable[[], Mapping[str, Tensor | float]] | None = None) -> Any:
        """The loader, for a library that trains in a loop of its own: hand it this instead, and call nothing else.

        It looks like the loader. Every pass over it is an epoch; the first one after a resume is the rest of its epoch.
        When the library asks for a batch, the one before counts as trained, and saves are taken. What it does between
        two epochs is done when it asks for the next one's first batch: no save is taken before that.

        Args:
            metrics: Called after each batch; gives metrics by name, as for ``step()``.
        """
        if self._reader is None or not self._reader.has_length:
            raise ConfigurationError("as_loader() needs a data loader with a length: pass loader= to Checkpointer")
        self._own_loop = OwnLoop(self._reader, self.one_pass, lambda: self.step(**(metrics() if metrics else {})))
        return StandIn(self._loader, self._own_loop.read)

    def step(self, loss: Tensor | float | None = None, **metrics: Tensor | float) -> None:
        """Call once per batch, after the optimizer. Saves if a save is due; otherwise never forces a device sync.

        While gradients are accumulated (no optimizer has stepped since the last call) nothing is counted or saved. Each
        call accounts for the oldest batch of ``batches()`` without one, so batches may be taken ahead.

        Args:
            loss: A metric named ``loss``.
            metrics: Other metrics by name: numbers, or one-element tensors, which are read when a save is taken. A
                checkpoint lists the last value of each.
        """
        with self._events:
            self._ensure_started(stepping=True)
            if loss is not None:
                metrics["loss"] = loss
            self._routine.after_batch({name: as_metric(name, value) for name, value in metrics.items()})

    def save(self, tag: str | None = None, *, wait: bool = False) -> bool:
        """Save now, as of the last optimizer step; batches handed out or accumulated since are repeated after a resume.

        Args:
            tag: A name that ``KeepTagged`` keeps it by and lists show.
            wait: Return only once it is committed, and raise SaveFailed if that fails.

        Returns:
            Whether a snapshot was taken. With several ranks the same on all of them: whether they agreed to take one.
            If a rank then cannot take its part, the save is not committed.
        """
        self._settle()
        with self._events:
            self._ensure_started(stepping=True)
            taken = self._routine.save(tag)
            if wait:
                self._routine.drain()
            return taken

    def recover(self, servers: Sequence[int], *, of: int, progress: Progress | None = None) -> Recovered:
        """Restore what ``servers`` of ``of`` held from the newest saved rows, and leave everything else as it is.

        Server i of n holds the i-th of n equal, contiguous ranges of every table's rows. Restored rows count as
        changed, and what they had learnt since as lost samples. All ranks of a job call this at the same step.

        Args:
            servers: The numbers of the lost servers, from 0.
            of: How many servers there are.
            progress: Called periodically with the bytes read since the last call.

        Returns:
            How many rows were restored, and from which steps.
        """
        lost, since_s = Servers(numbers=tuple(servers), of=of), self._outcomes.now_s
        with self._events:
            self._ensure_started()
            self._agents.settle()
            recovered = self._parts.recovery.recover(lost, progress=progress)
            if self._metering is not None:
                saved_step = self._outcomes.position.step
                self._outcomes.meter(self._metering.failed(self.steps, saved_step=saved_step, lost_share=lost.share))
            self._outcomes.recovered(
                Happening.RECOVERED_PART,
                step=self.steps,
                checkpoint_step=recovered.checkpoint_step,
                since_s=since_s,
                lost_share=lost.share,
            )
            return replace(recovered, pls=self.stats.pls)

    def recover_fully(self, *, reader: bool = True, progress: Progress | None = None) -> int:
        """Restore everything from the last checkpoint without restarting the process, and return its step.

        The counterpart of ``recover``. Leave the loop over ``batches()`` first, unless ``reader=False``.

        Args:
            reader: False leaves the loader's position and the random state as they are.
            progress: Called periodically with the bytes read since the last call.
        """
        self._ensure_started()
        if reader and self._reader is not None and self._reader.is_live:
            raise RunError("leave the loop over batches() before recover_fully(), and start a new one after it")
        since_s = self._outcomes.now_s
        with self._events:
            self._agents.settle()
            restored = self._parts.resumption.restore(None, strict=True, progress=progress)
            if restored is None:
                raise RunError(f"{self._store.url} holds no checkpoint to go back to yet")
            if reader:
                self._parts.resumption.restore_reader(restored.rank)
            self._stand_on(position_of(restored, self._outcomes.position.term), restored.job.pls)
            what = Happening.WENT_BACK
            self._outcomes.recovered(what, step=self.steps, checkpoint_step=self.steps, since_s=since_s)
            return self.steps

    def emulate_failure(self, servers: Sequence[int], *, of: int) -> None:
        """For emulation: overwrite what some servers hold with NaN, as if they had failed.

        Args:
            servers: The numbers of the servers that fail, from 0.
            of: How many servers there are.
        """
        self._ensure_started()
        self._parts.recovery.lose(Servers(numbers=tuple(servers), of=of))

    def mark(self, table: str, ids: Tensor | None = None) -> None:
        """Mark rows as changed that PyTorch did not see change, through ``.data`` or a NumPy view.

        Args:
            table: The table's name.
            ids: The rows' numbers. None: all of them.
        """
        self._parts.tracker.mark(table, ids)

    def annotate(self, **metrics: float) -> None:
        """Attach metrics that became known after the save (such as an AUC) to the last committed checkpoint.

        Args:
            metrics: Numbers by name; existing names are replaced.
        """
        with self._events:
            self._agents.poll()
            if (checkpoint := self._outcomes.position.checkpoint) is None:
                raise RunError("there is no committed checkpoint to attach metrics to yet")
            self._agents.annotate(checkpoint, {name: float(value) for name, value in metrics.items()})

    def drain(self, *, arranged: bool = False) -> None:
        """Wait until the save in progress is committed; raises SaveFailed if that fails.

        Args:
            arranged: Also wait until no increment of the grid is due for rearrangement.
        """
        with self._events:
            self._routine.drain()
            if arranged:
                self._agents.arrange()

    def terminate(self) -> None:
        """End the training as SIGTERM would: the next step, or ``close()``, saves everything and raises Terminated.

        For programs that handle signals, or hear of the end of their machine, themselves: call it on any rank, with
        ``Settings(handle_sigterm=False)``. It only sets a flag, so a signal handler may call it.
        """
        self._parts.termination.raised = True

    def close(self) -> None:
        """Save what is new, wait for the commit, and stop the agent.

        Raises SaveFailed if the last state is not committed, and Terminated, with everything saved, if SIGTERM came
        after the last step: the program then exits with that code.
        """
        if self._closed:
            return
        try:
            self._settle()
            with self._events:
                if self._started:
                    self._routine.finish()
        finally:
            self._release()
        self._routine.end_if_told()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            with self._events:
                if not self._closed:
                    self._agents.drain()
        except Exception as failure:
            logger.warning("while exiting because of an error: %s", failure)
        finally:
            self._release()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """A library's loop has ended, or saves by itself: its last batch is trained."""
        if self._own_loop is not None:
            self._own_loop.settle()

    def _start(self, position: Position, *, pls: Mapping[str, Any] | None = None, stepping: bool = False) -> None:
        self._stand_on(position, pls, stepping=stepping)
        self._agents.start(position.term, self._parts.resumption.announce_agent)
        self._started = True
        self._count_as_closed = warn_unless_closed(self, self._routine, self._store.url)
        if not stepping:
            self._routine.save_baseline_if_due()

    def _stand_on(self, position: Position, pls: Mapping[str, Any] | None, *, stepping: bool = False) -> None:
        """Training starts or continues from here; ``pls`` is the meter of lost samples that the checkpoint holds."""
        self._outcomes.go_on(position)
        self._routine.start(position.step, restored=position.checkpoint is not None, stepping=stepping)
        if self._metering is not None:
            self._metering.restore(pls, position.step)
            self._outcomes.meter(self._metering.meter.pls)

    def _ensure_started(self, *, stepping: bool = False) -> None:
        """``stepping``: the first step was already taken, so this is not the state before it."""
        if self._closed:
            raise RunError("this Checkpointer is closed")
        if self._started:
            return
        term = self._parts.resumption.begin(patience_s=self._takeover_s)
        self._start(Position(term=term), stepping=stepping)

    def _release(self) -> None:
        self._closed = True
        self._count_as_closed()
        self._parts.close()
