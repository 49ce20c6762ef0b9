"""CheckpointIO: Lightning's own checkpoints, stored as runs."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor

from holdfast.checkpoint.agent.cleanup import Cleanup
from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.lease import WRITER, HeldLease
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.commit.takeover import claim
from holdfast.checkpoint.read.fetcher import Fetcher, find_checkpoint
from holdfast.checkpoint.restore.saved_state import read_saved, shared_state
from holdfast.checkpoint.transfer.lone_writer import LoneWriter, state_tensors
from holdfast.errors import ConfigurationError, RunError
from holdfast.integrations.dcp.beginning import make_intent
from holdfast.policy import KeepLast
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store, open_store

logger = logging.getLogger("holdfast")

_LIGHTNING, _WEIGHTS, _OTHER = "lightning", "state_dict", "not tensors"
_WRITER = "Lightning's CheckpointIO"
_RETRY_S = 120.0
_GRACE_S = 600.0


class CheckpointIO(TorchCheckpointIO):
    """Stores what ``ModelCheckpoint`` and ``trainer.save_checkpoint()`` save as runs: ``Trainer(plugins=[...])``.

    Each path becomes a run that holds one checkpoint: committed as a whole or not at all, with checksums, without
    pickle. Saving to a path again replaces what it holds. Files that Lightning wrote before are still read. For object
    stores and for deltas use ``Guard``.

    Args:
        options: Object store client options, such as ``region`` or ``endpoint``, for paths that are URLs.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(self, *, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._options = options

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Commit a checkpoint, on the rank that calls it.

        Args:
            checkpoint: Lightning's. What would need pickle is refused, by its path.
            path: The run.
            storage_options: Not supported.
        """
        if storage_options is not None:
            raise ConfigurationError("storage_options= is not supported; pass options= to CheckpointIO")
        step = checkpoint.get("global_step", 0)
        state = state_tensors(step, _as_training(checkpoint))
        store = self._open(path)
        writer = f"{_WRITER} on {socket.gethostname()}:{os.getpid()}"
        chain = Chain(store, writer=writer, runtime=self._runtime)
        head = _claim(chain, store)
        intent = make_intent(head, step, tag=None, metrics={}, runtime=self._runtime)
        with HeldLease(store, WRITER, writer, [intent.checkpoint], runtime=self._runtime):
            LoneWriter(store, chain, intent, retention=KeepLast(1), runtime=self._runtime).write(state)
        self._clean(store, chain, intent.term)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Callable[..., Any] | torch.device | str | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read and verify a checkpoint. No code is run, whatever the run holds.

        Args:
            path: The run, or a file that Lightning wrote.
            map_location: The device to move tensors to; functions are for files only.
            weights_only: For files only.
        """
        if os.path.isfile(path):
            found: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)  # type: ignore[arg-type]
            return found
        if "://" not in os.fspath(path) and not os.path.isdir(path):
            raise FileNotFoundError(f"there is no checkpoint at {os.fspath(path)}")
        checkpoint = self._read(self._open(path))
        if isinstance(map_location, str | torch.device):
            checkpoint = move_data_to_device(checkpoint, map_location)
        return checkpoint

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Delete a run, or a file that Lightning wrote.

        Args:
            path: What to delete.
        """
        if "://" in os.fspath(path):
            store = self._open(path)
            store.delete([each.name for each in store.list()])
        else:
            super().remove_checkpoint(os.fspath(path))

    def _open(self, path: str | os.PathLike[str]) -> Store:
        url = os.fspath(path)
        if "://" not in url:
            Path(url).parent.mkdir(parents=True, exist_ok=True)
        store = open_store(url, options=self._options)
        return patient_store(store, retry_s=_RETRY_S, grace_s=_GRACE_S, runtime=self._runtime)

    def _read(self, store: Store) -> dict[str, Any]:
        entry = find_checkpoint(Chain(store, runtime=self._runtime).head(), None, where=store.url)
        fetcher = Fetcher(store, runtime=self._runtime)
        first = fetcher.parts(entry)[0]
        training = shared_state(read_saved(fetcher, first), first).training
        if _LIGHTNING not in training["extra"]:
            raise RunError(
                f"{store.url} was not written by CheckpointIO: resume it with what wrote it, such as a Guard"
            )
        checkpoint = dict(training["extra"][_LIGHTNING])
        others = checkpoint.pop(_OTHER)
        return {**checkpoint, _WEIGHTS: {**training["model"], **others}}

    def _clean(self, store: Store, chain: Chain, term: int) -> None:
        """Delete what was replaced, after the time that readers are given."""
        Cleanup(
            store,
            chain,
            term=term,
            grace_s=_GRACE_S,
            leads=True,
            leftovers=None,
            tell=lambda notice: logger.warning("%s", notice),
            runtime=self._runtime,
        ).after_commit()


def _claim(chain: Chain, store: Store) -> Head:
    """Own the run, unless it is one of another kind, whose writer this would fence off."""
    head = chain.head(skip_damaged=True)
    if head is not None and head.entries and not head.catalog.writer.startswith(_WRITER):
        raise ConfigurationError(
            f"{store.url} holds checkpoints of {head.catalog.writer}: give Lightning's own checkpoints other paths"
        )
    return claim(chain)


def _as_training(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The weights where every reader of a run looks for them, and the rest as an extra."""
    weights: Mapping[str, Any] = checkpoint.get(_WEIGHTS, {})
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    others = {name: value for name, value in weights.items() if name not in tensors}
    rest = {name: value for name, value in checkpoint.items() if name != _WEIGHTS}
    return {"model": tensors, "modules": {}, "optimizers": [], "extra": {_LIGHTNING: {**rest, _OTHER: others}}}
