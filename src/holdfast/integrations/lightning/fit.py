"""One call of ``Trainer.fit`` under a guard.

Lightning does much around a batch: hooks of callbacks and of the module, schedulers, validation, an epoch's end. All of
that is done when it asks for the next batch. So there the last one counts as trained, and saves are taken: between the
loader and Lightning, and not in a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from holdfast.checkpoint.trainer.sigterm import TerminationFlag
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.checkpoint.training.stand_in import StandIn
from holdfast.errors import Terminated
from holdfast.integrations.lightning.loader import replace_train_loader
from holdfast.integrations.lightning.loops import Loops
from holdfast.integrations.lightning.state import extras
from holdfast.session import Checkpointer

Open = Callable[[Mapping[str, Any]], Checkpointer]  # with these extras


class GuardedFit:
    """Saves while Lightning trains, from ``resume()`` to ``close()``, or to ``leave()`` with an error."""

    def __init__(self, trainer: Trainer, open_run: Open) -> None:
        self._trainer = trainer
        self._loops = Loops(trainer)
        self.checkpointer = open_run(extras(trainer, self._loops))
        self._batches: Iterator[Any] | None = None
        self._accounted = 0  # batches that the checkpointer was told of
        self._resumed_at: int | None = None  # batches; None once training goes on
        self._rng: Mapping[str, Any] | None = None  # after the last fetch, while it does not
        self._over = False  # the epoch that was saved
        self._tag: str | None = None
        self._termination: TerminationFlag | None = None

    def resume(self, combined: CombinedLoader) -> None:
        """Restore everything, and let Lightning read through the guard what it reads."""
        if self.checkpointer.resume() > 0:
            self._resumed_at = self._loops.batches
            self._over = not self._loops.within_epoch
        self._accounted = self._loops.batches
        (loader,) = combined.flattened
        replace_train_loader(self._trainer, combined, StandIn(loader, self._read_epoch))

    def watch(self, *, sigterm: bool) -> None:
        """Training begins. From here on SIGTERM ends it as the guard does, at one step on all ranks.

        Lightning's own handler runs a collective from within the signal handler, beside those of training.
        """
        self._termination = TerminationFlag(install=sigterm)

    def save_soon(self, tag: str | None) -> None:
        """Save when the next batch is asked for, whatever is due."""
        self._tag = tag or ""

    def close(self) -> None:
        """Save what is new, and wait for it."""
        self._account()
        self._unwatch()
        self._ending(self.checkpointer.close)

    def leave(self, error: BaseException) -> None:
        """Wait for the save in progress."""
        trace: TracebackType | None = error.__traceback__
        self._unwatch()
        self.checkpointer.__exit__(type(error), error, trace)

    # ---- what Lightning reads ------------------------------------------------------------------------------------

    def _read_epoch(self) -> Iterator[Any]:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self._batches = self.checkpointer.one_pass(anew=self._over)
        self._over = False
        return self._asked(self._batches)

    def _asked(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._account()
            try:
                batch = self._fetch(batches)
            except StopIteration:
                return
            yield batch

    def _fetch(self, batches: Iterator[Any]) -> Any:
        """The next batch. After a resume nothing that comes before training goes on changes its random numbers.

        Lightning takes the first batch early where it knows no length, and calls hooks after that.
        """
        if self._resumed_at is None or self._loops.batches > self._resumed_at:
            self._resumed_at = self._rng = None
            return next(batches)
        if self._rng is not None:
            restore_rng(self._rng)
        batch = next(batches)
        self._rng = capture_rng()
        return batch

    # ---- what the checkpointer is told ---------------------------------------------------------------------------

    def _account(self) -> None:
        """Everything that belongs to the batches before is done: count them, and save what is due."""
        if self._termination is not None and self._termination.raised:
            self.checkpointer.terminate()
        batches = self._loops.batches
        for _ in range(batches - self._accounted):
            self._ending(lambda: self.checkpointer.step(**self._metrics()))
        self._accounted = batches
        if self._tag is not None:
            tag, self._tag = self._tag, None
            self.checkpointer.save(tag or None)

    def _metrics(self) -> dict[str, Any]:
        logged = self._trainer.callback_metrics
        return {name: value for name, value in logged.items() if not isinstance(value, Tensor) or value.numel() == 1}

    def _ending(self, call: Callable[[], object]) -> None:
        """End as Lightning ends on SIGTERM, with the exit code that says so."""
        try:
            call()
        except Terminated as told:
            self._trainer._signal_connector.received_sigterm = True
            raise SIGTERMException(told.code) from told

    def _unwatch(self) -> None:
        if self._termination is not None:
            self._termination.restore()
