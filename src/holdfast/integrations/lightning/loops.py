"""Where a Trainer is in its epochs: its loops' counters, saved and restored between two batches.

Lightning saves them inside of a batch's hooks and, after a restart, makes up for what may be missing: it validates
again or skips a validation, counts a step once more, leaves ``ReduceLROnPlateau`` alone until the epoch is over. A
guard saves where nothing is missing, when the next batch is asked for: none of that may happen after its resume.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


class Loops:
    """An extra of a Checkpointer. It may be asked for its state only between two batches, or outside of epochs."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def batches(self) -> int:
        """Batches that training is done with, across all restarts."""
        return self._trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined,no-any-return]

    @property
    def within_epoch(self) -> bool:
        """Whether an epoch has begun and is not over."""
        progress: Any = self._trainer.fit_loop.epoch_progress.current
        return bool(progress.started != progress.processed)

    def state_dict(self) -> dict[str, Any]:
        """The counters, and whether a callback has ended the training early."""
        return {"fit_loop": self._trainer.fit_loop.state_dict(), "should_stop": self._trainer.should_stop}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``fit`` loop go on from these counters."""
        loop = self._trainer.fit_loop
        loop.load_state_dict(state["fit_loop"])
        self._trainer.should_stop = state["should_stop"]
        if self.within_epoch:
            loop.epoch_loop.__dict__["reset"] = self._enter_epoch
        else:
            self._end_restart()

    def _enter_epoch(self) -> None:
        """In place of the first ``reset()`` of the epoch's loop: everything is as it shall be."""
        del self._trainer.fit_loop.epoch_loop.__dict__["reset"]
        self._end_restart()

    def _end_restart(self) -> None:
        loop = self._trainer.fit_loop
        loop._restarting = False  # its setter may decide otherwise
        loop.epoch_loop.restarting = False
