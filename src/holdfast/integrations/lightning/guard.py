"""Guard: the callback that saves and resumes a Trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch.optim import Optimizer

from holdfast.checkpoint.track.row_local import RowLocal
from holdfast.checkpoint.trainer.policies import as_policies, require
from holdfast.checkpoint.trainer.position import SaveStats
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.errors import ConfigurationError, RunError
from holdfast.events import Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken
from holdfast.integrations.lightning.fit import GuardedFit
from holdfast.integrations.lightning.loader import find_train_loader
from holdfast.policy import EverySteps, Exact, KeepLast, Overlap, Precision, Retention, SavePolicy, Strategy
from holdfast.session import Checkpointer
from holdfast.storage import Store


class Guard(Checkpoint):
    """Saves a ``Trainer``'s training while it runs, and resumes it automatically: pass it in ``callbacks=``.

    ``fit`` continues where the last process stopped, in mid-epoch too, as if nothing had happened: model, optimizers,
    schedulers, precision plugin, callbacks, datamodule, loops, random numbers and the position in the train loader.
    On a run that is finished it returns at once. Saves are taken between two batches, when everything that belongs to
    the first one is done, its validation included.

    It takes the place of ``ModelCheckpoint``, which Lightning then does not add by itself. Metrics that were logged
    (``trainer.callback_metrics``) go with each checkpoint, for ``KeepBest``. SIGTERM saves at the next batch and ends
    the training with Lightning's ``SIGTERMException``. With ``fast_dev_run`` it does nothing.

    Args:
        url: Where the run is kept, as for ``Checkpointer``. Each training needs its own URL.
        save: When a save is due. A step is a batch after which an optimizer stepped.
        strategy: What a checkpoint holds. None: ``Grid`` if ``retention`` keeps everything, otherwise ``Intermittent``.
        precision: How precisely rows are stored.
        retention: Which checkpoints are kept.
        overlap: What to do when a save is due while the previous one is still being written.
        tables: Additional embedding tables: the names of parameters of the module, such as ``"net.users"``.
        row_local: Classes of third-party optimizers that move only rows with a gradient; see ``RowLocal``.
        on_save: Called with a ``SnapshotTaken`` once a save has been copied.
        on_commit: Called with a ``SaveCommitted`` once a save is committed.
        on_failure: Called with a ``SaveGivenUp`` when a save is given up; training continues.
        on_recover: Called with a ``Recovery`` after a resume.
        options: Object store client options.
        settings: Buffer sizes, timeouts and the agent's priority. ``handle_sigterm=False`` leaves SIGTERM to Lightning,
            which ends the training without a save.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    best_model_path = ""  # Lightning asks checkpoint callbacks for it: there is no file to load

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        save: SavePolicy = EverySteps(1000),  # noqa: B008 - frozen
        strategy: Strategy | None = None,
        precision: Precision = Exact(),  # noqa: B008
        retention: Retention = KeepLast(1),  # noqa: B008
        overlap: Overlap = Overlap.SKIP,
        tables: Sequence[str] = (),
        row_local: Sequence[type[Optimizer]] = (),
        on_save: Callable[[SnapshotTaken], object] | None = None,
        on_commit: Callable[[SaveCommitted], object] | None = None,
        on_failure: Callable[[SaveGivenUp], object] | None = None,
        on_recover: Callable[[Recovery], object] | None = None,
        options: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008
    ) -> None:
        as_policies(save=save, strategy=strategy, precision=precision, retention=retention, overlap=overlap)
        require("settings", settings, Settings)
        self._url = url
        self._tables = tuple(tables)
        self._row_local = tuple(row_local)
        self._handle_sigterm = settings.handle_sigterm
        self._arguments: dict[str, Any] = {
            "save": save,
            "strategy": strategy,
            "precision": precision,
            "retention": retention,
            "overlap": overlap,
            "on_save": on_save,
            "on_commit": on_commit,
            "on_failure": on_failure,
            "on_recover": on_recover,
            "options": options,
            "settings": replace(settings, handle_sigterm=False),
        }
        self._fit: GuardedFit | None = None
        self._last: Checkpointer | None = None

    @property
    def steps(self) -> int:
        """Batches after which an optimizer stepped, across all restarts; 0 before the first ``fit``."""
        return self._last.steps if self._last is not None else 0

    @property
    def stats(self) -> SaveStats:
        """What saving has cost in the current or the last ``fit``."""
        return self._last.stats if self._last is not None else SaveStats()

    def save(self, tag: str | None = None) -> None:
        """Save at the end of this batch, whatever is due: call it in any hook of a ``fit``, on all ranks.

        Args:
            tag: A name that ``KeepTagged`` keeps it by and lists show.
        """
        if self._fit is None:
            raise RunError("save() is for hooks of a running fit(), on the trainer that has this guard")
        self._fit.save_soon(tag)

    # ---- Lightning's hooks ---------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the run, and resume from it."""
        if getattr(trainer, "fast_dev_run", False):
            return
        _require_alone(trainer)
        combined = find_train_loader(trainer)
        if combined is None:
            return
        (loader,) = combined.flattened
        self._fit = fit = GuardedFit(trainer, lambda extra: self._open(trainer, pl_module, loader, extra))
        self._last = fit.checkpointer
        fit.resume(combined)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has installed its signal handlers: take SIGTERM over."""
        if self._fit is not None:
            self._fit.watch(sigterm=self._handle_sigterm)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what is new, wait for the commit, stop the agent."""
        if self._fit is not None:
            self._fit.close()
            self._fit = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Wait for the save in progress; nothing new is saved."""
        if self._fit is not None:
            fit, self._fit = self._fit, None
            fit.leave(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Where nothing was left to train, the run is still open."""
        self.on_train_end(trainer, pl_module)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _open(self, trainer: Trainer, module: LightningModule, loader: Any, extra: Mapping[str, Any]) -> Checkpointer:
        declared = [RowLocal(each) if isinstance(each, self._row_local) else each for each in trainer.optimizers]
        return Checkpointer(
            self._url,
            model=module,
            optimizer=declared,
            loader=loader,
            extra=extra,
            tables={name: module.get_parameter(name) for name in self._tables},
            **self._arguments,
        )


def _require_alone(trainer: Trainer) -> None:
    """Raise ConfigurationError where something else has restored a checkpoint."""
    if trainer.ckpt_path is not None:
        raise ConfigurationError(
            f"fit() was to load {str(trainer.ckpt_path)!r}, but the guard resumes from its own run. Leave ckpt_path= "
            "out (on SLURM: SLURMEnvironment(auto_requeue=False)). To begin a run with the weights of that file, load "
            "them into the module before fit()"
        )
