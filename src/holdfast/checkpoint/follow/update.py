"""What an update did, and how far behind the run the model is."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.follow.path import Reload
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update: a checkpoint that was applied to the weights.

    Args:
        checkpoint: What the weights hold now.
        previous: What they held before. None: nothing.
        rows: Rows written, each counted once.
        read_bytes: Bytes read for row ids, weights and the dense part.
        reload: Why all rows were read. None: reading the changed ones was enough.
        pause_s: How long batches had to wait.
    """

    checkpoint: CheckpointInfo
    previous: CheckpointInfo | None
    rows: int
    read_bytes: int
    reload: Reload | None
    pause_s: float

    @property
    def step(self) -> int:
        """The step of the weights now."""
        return self.checkpoint.step

    @property
    def from_step(self) -> int | None:
        """The step of the weights before; None if they held nothing."""
        return self.previous.step if self.previous else None

    @property
    def whole(self) -> bool:
        """Whether all rows were read."""
        return self.reload is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far weights are behind their run, as of the last check.

    Args:
        checkpoints: Committed checkpoints that were not applied yet.
        steps: The steps between the newest checkpoint and the applied one.
        age_s: Seconds since the applied checkpoint was taken, by the clocks of writer and reader. None: nothing was
            applied yet.
    """

    checkpoints: int
    steps: int
    age_s: float | None
