"""Follower: the one object a serving process holds. Applies newly committed checkpoints to a model in use."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from torch import nn

from holdfast.checkpoint.follow.gate import Gate
from holdfast.checkpoint.follow.targets import ServedModel
from holdfast.checkpoint.follow.update import Lag, Update
from holdfast.checkpoint.follow.updater import Updater
from holdfast.checkpoint.trainer.arguments import as_models
from holdfast.errors import ConfigurationError, HoldfastError, RunError
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store, open_store
from holdfast.storage.retry import RetryingStore
from holdfast.types import CheckpointInfo

logger = logging.getLogger("holdfast")

_RETRY_S = 60.0  # how long an unreachable store is tried within one update
_PAUSE_S = 1.0  # between two looks at the run

OnUpdate = Callable[[Update], None]


class Follower:
    """Keeps a served model at the newest committed checkpoint of a run.

    Only changed rows are read, and only their weights. Everything is read, verified and decoded before batches have to
    wait. Call ``update()`` yourself, ``follow()`` on your own thread, or ``start()`` to start a thread, and serve each
    batch inside a ``with follower.serving():`` block.

    Args:
        url: The run to follow: a path or URL as for ``Checkpointer``, or a ``Store`` object.
        model: The model that serves, or several by name, named as in training.
        tables: Additional embedding tables by name, as in training.
        strict: Refuse a model that lacks a table or parameter of the run or has it in a different shape. False applies
            what matches, converts types, and logs once what was left out.
        each: Apply every checkpoint the run still holds, one per update, instead of skipping to the newest.
        staging_bytes: How much memory an update may use before it is written to the model.
        spill: A folder for what does not fit in ``staging_bytes``. None: the system's temporary folder.
        baseline_in_memory: If rows are stored as differences, keep the baseline's rows in memory, in their stored form.
            False rereads them for every update.
        options: Object store client options, such as ``region`` or ``endpoint``.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        model: nn.Module | Mapping[str, nn.Module],
        *,
        tables: Mapping[str, nn.Parameter] | None = None,
        strict: bool = True,
        each: bool = False,
        staging_bytes: int = 2**30,
        spill: str | os.PathLike[str] | None = None,
        baseline_in_memory: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if staging_bytes < 0:
            raise ConfigurationError(f"staging_bytes={staging_bytes} is not valid; pass a number of at least 0")
        if spill is not None and not Path(spill).is_dir():
            raise ConfigurationError(f"spill={os.fspath(spill)!r} is not valid; pass an existing folder")
        store = open_store(url, options=options, patience_s=_RETRY_S) if isinstance(url, str | os.PathLike) else url
        self._gate = Gate()
        self._updater = Updater(
            RetryingStore(store, total_s=_RETRY_S, runtime=self._runtime),
            ServedModel(as_models(model), tables or {}, strict=strict),
            gate=self._gate,
            each=each,
            staging_bytes=staging_bytes,
            spill=Path(spill) if spill is not None else None,
            baseline_in_memory=baseline_in_memory,
            runtime=self._runtime,
        )
        self._error: HoldfastError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def checkpoint(self) -> CheckpointInfo | None:
        """What the model holds; None before the first update, and after one that failed while being written."""
        return self._updater.checkpoint

    @property
    def step(self) -> int | None:
        """The step of that checkpoint."""
        checkpoint = self.checkpoint
        return checkpoint.step if checkpoint else None

    @property
    def lag(self) -> Lag:
        """How far the model is behind the run, as of the last check."""
        return self._updater.lag

    @property
    def error(self) -> HoldfastError | None:
        """Why the last update of ``follow`` or ``start`` failed; None if it did not."""
        return self._error

    def serving(self) -> AbstractContextManager[None]:
        """A block in which the model does not change: serve each batch inside one. Any number may run concurrently."""
        return self._gate.serving()

    def update(self) -> Update | None:
        """Check once and apply the newest checkpoint (with ``each`` the next one); None if there is nothing new.

        If it fails, the error says what the model holds (usually what it held before), and the next call retries.
        """
        return self._updater.update()

    def follow(
        self, *, every_s: float = _PAUSE_S, stop: threading.Event | None = None, on_update: OnUpdate | None = None
    ) -> None:
        """Update repeatedly until ``stop`` is set. Continues after errors, unless retrying cannot help.

        Args:
            every_s: How long to wait before checking again when there was nothing new.
            stop: Set it from another thread to end the loop. None: runs forever.
            on_update: Called with what each update changed.
        """
        if not every_s > 0:
            raise ConfigurationError(f"every_s={every_s} is not valid; pass a number above 0")
        stop = stop or threading.Event()
        while not stop.is_set():
            if not self._try(on_update):
                self._runtime.wait(stop, every_s)

    def start(self, *, every_s: float = _PAUSE_S, on_update: OnUpdate | None = None) -> None:
        """Follow on a background thread until ``stop()``.

        Args:
            every_s: How long to wait before checking again when there was nothing new.
            on_update: Called on that thread with what each update changed.
        """
        if self._thread is not None:
            raise RunError("this Follower has already been started")
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._follow, args=(every_s, on_update), name="holdfast-follow", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the update in progress; the model keeps its weights."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _follow(self, every_s: float, on_update: OnUpdate | None) -> None:
        try:
            self.follow(every_s=every_s, stop=self._stop, on_update=on_update)
        except Exception:
            logger.exception("the model is no longer updated; it holds step %s", self.step)

    def _try(self, on_update: OnUpdate | None) -> bool:
        """Whether there was something new; if so, there may be more."""
        try:
            update = self.update()
        except HoldfastError as error:
            if self._error is None or str(self._error) != str(error):
                logger.warning("not updated: %s", error)
            self._error = error
            if isinstance(error, ConfigurationError):
                raise
            return False
        self._error = None
        if update is not None and on_update is not None:
            on_update(update)
        return update is not None
