"""The train loader of a Trainer: which one it is, and what Lightning reads instead of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.utilities import _select_data_fetcher
from lightning.pytorch.trainer.connectors.data_connector import (
    _process_dataloader,
    _request_dataloader,
    _resolve_overfit_batches,
)
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden

from holdfast.checkpoint.training.stand_in import StandIn
from holdfast.errors import ConfigurationError

Untyped = Any  # a Trainer: connectors give it attributes that its class does not declare


def find_train_loader(trainer: Untyped) -> CombinedLoader | None:
    """The train loader as Lightning prepares it for this rank; None if nothing will be trained.

    Lightning is asked for it before it would ask itself, and nothing is read from it.
    """
    loop, module = trainer.fit_loop, trainer.lightning_module
    if trainer.limit_train_batches == 0 or not is_overridden("training_step", module):
        return None
    _require_readable(trainer)
    combined: CombinedLoader | None = loop._combined_loader
    if combined is None:  # trainer.estimated_stepping_batches has not asked for it either
        combined = _as_combined(_request_dataloader(loop._data_source))
        trainer.strategy.barrier("train_dataloader()")
        if trainer.overfit_batches > 0:
            _resolve_overfit_batches(combined, mode=RunningStage.TRAINING)
        prepare = partial(_process_dataloader, trainer, TrainerFn.FITTING, RunningStage.TRAINING)
        combined.flattened = [prepare(loader) for loader in combined.flattened]
    if len(combined.flattened) != 1:
        raise ConfigurationError(
            f"the Trainer reads {len(combined.flattened)} train loaders at once; the guard supports one: join the "
            "datasets, or yield from the loaders in an iterable of your own with state_dict() and load_state_dict()"
        )
    return combined


def replace_train_loader(trainer: Trainer, combined: CombinedLoader, loader: StandIn) -> None:
    """Let ``fit`` read from ``loader`` instead of the only one in ``combined``."""
    combined.flattened = [loader]
    trainer.fit_loop._data_source.instance = combined
    trainer.fit_loop._combined_loader = None  # to be set up with it


def _as_combined(loaders: Any) -> CombinedLoader:
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, "max_size_cycle")


def _require_readable(trainer: Untyped) -> None:
    """Raise ConfigurationError for ways of reading that a resume could not continue."""
    if trainer.reload_dataloaders_every_n_epochs:
        raise ConfigurationError(
            "Trainer(reload_dataloaders_every_n_epochs=...) makes new train loaders that a resume could not find its "
            "place in; leave it out, and let the dataset or its sampler change with set_epoch()"
        )
    if isinstance(_select_data_fetcher(trainer, RunningStage.TRAINING), _DataLoaderIterDataFetcher):
        raise ConfigurationError(
            "training_step(dataloader_iter) reads batches itself: what it has read is not known between two of its "
            "calls. Take a batch as its argument: training_step(batch, batch_idx)"
        )
