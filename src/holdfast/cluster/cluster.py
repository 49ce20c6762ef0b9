"""Cluster: a training whose tables live on servers, as one object."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Literal, Self

from torch import nn

from holdfast.checkpoint.shards.run import ShardedRun
from holdfast.checkpoint.trainer.policies import as_policies, require
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.cluster.arguments import Optimizers, Size, pacing, protected
from holdfast.cluster.controller.loop import Deserted
from holdfast.cluster.controller.parts import ControllerParts
from holdfast.cluster.controller.resume import Beginning, find_beginning
from holdfast.cluster.controller.signals import StopSignals
from holdfast.cluster.controller.worker_count import WorkerCount
from holdfast.cluster.core.members import CONTROLLER, Role
from holdfast.cluster.happenings import Event
from holdfast.cluster.history import History
from holdfast.cluster.job import Contacts, Job, Saving
from holdfast.cluster.ladder import Asked, Machines, Settled
from holdfast.cluster.launch.base import Launcher, Launching
from holdfast.cluster.launch.functions import import_name, require_not_loading
from holdfast.cluster.launch.local import LocalProcesses
from holdfast.cluster.progress import Progress
from holdfast.cluster.train.build import BuiltModel, build
from holdfast.cluster.train.finite import OnNan
from holdfast.cluster.wire.beats import Beats
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.keys import Credentials
from holdfast.errors import JobFailed, RunError, Terminated
from holdfast.policy import (
    EverySteps,
    Exact,
    KeepLast,
    Ladder,
    Overlap,
    Precision,
    Retention,
    SavePolicy,
    Strategy,
)
from holdfast.policy.arguments import require_count, require_duration, require_flag
from holdfast.policy.ladder import AUTO
from holdfast.policy.optimizer import Optimizer
from holdfast.policy.parity import FAST, Parity
from holdfast.policy.tables import Tables
from holdfast.storage import Store

logger = logging.getLogger("holdfast")


class Cluster:
    """Trains a model with its large tables on servers, and lives through the death of any of its processes.

    What the death of a server costs, its ``ladder`` says. A worker that dies costs nothing: another goes on in its
    place. A run that exists already is resumed.

    Args:
        url: Where the run is kept, as for a Checkpointer.
        model: Builds the model, in every worker: a function at the top level of a module or script.
        train: What every worker does; takes a ``Worker``. A function at the top level of a module or script.
        servers: How many processes hold tables.
        workers: How many processes compute gradients, until ``resize``.
        optimizer: Of tables: ``SGD``, ``Adagrad``, ``RowwiseAdagrad`` or ``Adam``.
        dense_optimizer: Of everything else. None: the same.
        tables: Which tables live on servers, and how their rows begin.
        save: When a save is due. Steps are those of all workers together.
        strategy: What a checkpoint holds. ``Partial(...)`` also stands for a ladder with partial recovery.
        precision: How precisely rows are stored.
        retention: Which checkpoints are kept; where everyone goes back after a server's death, the last two at least.
        overlap: What to do when a save is due while the previous one is still being written.
        ladder: By which rungs deaths of servers are made up for: a ``Ladder``. ``"auto"``: what ``parity`` and
            ``strategy`` say and, where no parity is given, one that the planner chooses if the job's servers, machines
            and memory allow it and it pays.
        parity: The ladder's parity alone. Not beside a ``Ladder``.
        synchronous: One optimizer step on the mean of all workers' gradients, instead of one for each of them.
        launcher: Starts the processes: ``LocalProcesses`` or ``Ray``.
        spares: How many servers wait, started, for a dead one's place.
        ahead: How many batches' rows are pulled before they are needed; 0 where training is synchronous.
        on_nan: What becomes of a step whose gradients are not finite: ``"raise"``, ``"skip"`` or ``"push"``.
        on_bad_ids: What becomes of a batch with an id outside its table: ``"raise"`` or ``"skip"``.
        silence_s: After how many seconds without a heartbeat a process is taken for dead.
        on_event: Called with everything that happens to the job (``holdfast.cluster.happenings``), between two turns of
            the controller: it must not take long. That it raises is logged once, and changes nothing.
        on_progress: Called with a ``Progress`` every 5 seconds, likewise: throughput, staleness, loss and PLS.
        view: Show on stderr how it goes. None: if that is a terminal. Where nothing is shown, events are logged by the
            logger ``holdfast``.
        options: Object store client options.
        settings: Buffer sizes, timeouts and the agents' priority.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        model: Callable[[], nn.Module],
        train: Callable[[Any], object],
        servers: int,
        workers: int,
        optimizer: Optimizer,
        dense_optimizer: Optimizer | None = None,
        tables: Tables = Tables(),  # noqa: B008 - frozen
        save: SavePolicy = EverySteps(1000),  # noqa: B008
        strategy: Strategy | None = None,
        precision: Precision = Exact(),  # noqa: B008
        retention: Retention = KeepLast(1),  # noqa: B008
        overlap: Overlap = Overlap.SKIP,
        ladder: Ladder | Literal["auto"] = AUTO,
        parity: Parity | None = None,
        synchronous: bool = False,
        launcher: Launching = LocalProcesses(),  # noqa: B008
        spares: int = 0,
        ahead: int = 1,
        on_nan: OnNan = "raise",
        on_bad_ids: Literal["raise", "skip"] = "raise",
        silence_s: float = 30.0,
        on_event: Callable[[Event], object] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        view: bool | None = None,
        options: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008
    ) -> None:
        self._size = Size(servers=servers, workers=workers, spares=spares)
        self._size.require(self)
        require_duration(self, "silence_s", silence_s)
        require_flag(self, "synchronous", synchronous)
        self._optimizers = Optimizers.of(optimizer, dense_optimizer)
        require("tables", tables, Tables)
        require("settings", settings, Settings)
        self._asked = Asked.of(ladder, parity, strategy, retention=retention, servers=servers, synchronous=synchronous)
        self._policies = as_policies(
            save=save, strategy=self._asked.strategy, precision=precision, retention=retention, overlap=overlap
        )
        self._pacing = pacing(
            self._policies,
            synchronous=synchronous,
            ahead=ahead,
            silence_s=silence_s,
            on_nan=on_nan,
            on_bad_ids=on_bad_ids,
        )
        self._url, self._options, self._settings = os.fspath(url), options, settings
        self._model, self._names, self._tables = model, (import_name(model), import_name(train)), tables
        self._launching = launcher
        self._on_event, self._on_progress, self._view = on_event, on_progress, view
        self._count: WorkerCount | None = None  # of the job that runs, or ran last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """For use in a ``with`` block. ``run`` leaves nothing behind, whether it returns or raises."""

    def run(self) -> None:
        """Train to the end of the data, from the newest checkpoint if there is one.

        Raises:
            JobFailed: ``train`` raised or called ``sys.exit``, or a process died or failed to start again and again.
            KeyboardInterrupt: After Ctrl-C, when all is saved and ended.
            Terminated: After SIGTERM, when all is saved and ended.
        """
        require_not_loading("Cluster.run()")
        built = build(self._model, self._tables)
        problem: str | None = None
        while problem is None:
            problem = self._run_once(built)
        if problem:
            raise JobFailed(problem)

    def _run_once(self, built: BuiltModel) -> str | None:
        """The problem that ended the job, empty where all is well; None where it has to be resumed."""
        with ExitStack() as stack:
            launcher = self._launching.open(**asdict(self._size))
            stack.callback(launcher.close)
            run = ShardedRun(self._url, options=self._options, settings=self._settings)
            settled = self._settle(built, launcher, run.store)
            beginning = find_beginning(run, built.plan, workers=self._size.workers)
            contacts = self._listen(stack, launcher)
            job = self._job(built, beginning, contacts, settled)
            return self._train_to_end(job, beginning, launcher, run.store, settled)

    def resize(self, *, workers: int) -> None:
        """Change the number of workers while ``run`` is under way: from another thread, or from ``on_event``.

        Returns at once. A save is taken first; behind it ``train`` begins anew in every worker, with another
        ``worker.count``, and nothing is lost. A ``Resized`` event says that all are at work; ``ResizeFailed``, that
        the save failed, or that there is no room, and all is as before. With the number that there is already, nothing
        happens.

        Args:
            workers: How many processes shall compute gradients.

        Raises:
            ConfigurationError: That is no number of workers.
            RunError: No job is running, or another change is under way.
        """
        require_count(self, "workers", workers)
        if self._count is None:
            raise RunError("no job is running; pass workers=... to Cluster, or wait for its Started event")
        self._count.ask(workers)

    @property
    def _retention(self) -> Retention:
        """A newer checkpoint may be committed that nobody has heard of when everyone is told to go back."""
        partial = self._policies.partial
        goes_back = self._pacing.synchronous or partial is None or partial.budget is not None
        return self._policies.retention | KeepLast(2) if goes_back else self._policies.retention

    def _listen(self, stack: ExitStack, launcher: Launcher) -> Contacts:
        credentials = Credentials.make()
        self._endpoint = Endpoint(CONTROLLER, credentials, f"tcp://{launcher.host}:*")
        stack.callback(self._endpoint.close)
        self._beats = Beats(self._endpoint.sockets, timeout_s=self._pacing.silence_s)
        stack.callback(self._beats.close)
        return Contacts(controller=self._endpoint.address, beats=self._beats.address, credentials=credentials)

    def _settle(self, built: BuiltModel, launcher: Launcher, store: Store) -> Settled:
        """Which rungs the job has, and which servers protect each other."""
        machines = Machines(
            launcher.machines(Role.SERVER, self._size.servers),
            launcher.free_bytes(),
            plan=built.plan,
            optimizer=self._optimizers.tables,
            dense_optimizer=self._optimizers.dense,
        )
        history = History.of(store, self._policies.save) if self._asked.is_auto else History()
        outlook = machines.outlook(mtbf_s=history.mtbf_s, interval_s=history.interval_s)
        return machines.settle(self._asked, outlook)

    def _job(self, built: BuiltModel, beginning: Beginning, contacts: Contacts, settled: Settled) -> Job:
        (model, train), parity = self._names, settled.ladder.parity
        return Job(
            model=model,
            train=train,
            plan=built.plan,
            dense=built.dense_values(),
            servers=self._size.servers,
            optimizer=self._optimizers.tables,
            dense_optimizer=self._optimizers.dense,
            tables=self._tables,
            saving=Saving(
                url=self._url,
                options=self._options,
                term=beginning.term,
                strategy=self._asked.strategy,
                precision=self._policies.precision,
                retention=self._retention,
                overlap=self._policies.overlap,
                settings=self._settings,
            ),
            pacing=self._pacing if parity is None else protected(self._pacing, is_rebuilt_fast=parity.rebuild == FAST),
            contacts=contacts,
            rings=settled.rings,
            together=settled.together,
            spares=self._size.spares,
        )

    def _train_to_end(
        self, job: Job, beginning: Beginning, launcher: Launcher, store: Store, settled: Settled
    ) -> str | None:
        parts = ControllerParts(
            job,
            beginning,
            settled,
            workers=self._size.workers,
            policies=self._policies,
            store=store,
            on_event=self._on_event,
            on_progress=self._on_progress,
            view=self._view,
        )
        controller = parts.controller(self._endpoint, self._beats, launcher, spares=self._size.spares)
        self._count = parts.count
        with ExitStack() as stack:
            signals = stack.enter_context(StopSignals(controller.stop))
            stack.enter_context(parts.view or nullcontext())
            stack.enter_context(closing(parts.recorder))
            stack.enter_context(closing(parts.count))

            def turn() -> None:
                signals.drain()
                parts.recorder.turn()
                parts.reporter.turn()
                if parts.view is not None:
                    parts.view.turn()

            try:
                problem: str | None = controller.run((signals.fd,), turn)
            except Deserted as deserted:
                logger.warning("%s; the job goes on from there", deserted)
                self._size, problem = replace(self._size, workers=parts.count.workers), None
        if not problem and signals.caught is signal.SIGINT:
            raise KeyboardInterrupt
        if not problem and signals.caught is signal.SIGTERM:
            raise Terminated
        return problem
