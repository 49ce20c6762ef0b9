"""What an update did, and how far behind the run the model is."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.follow.path import Reload
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A checkpoint that was applied."""

    checkpoint: CheckpointInfo
    previous: CheckpointInfo | None  # what the weights held before
    rows: int  # that were written, each counted once
    read_bytes: int  # row ids, weights and the dense part
    reload: Reload | None  # why all rows were read; None where the changed ones were enough
    pause_s: float  # how long nothing could be served

    @property
    def step(self) -> int:
        """The step that the weights are of now."""
        return self.checkpoint.step

    @property
    def from_step(self) -> int | None:
        """The step that they were of before."""
        return self.previous.step if self.previous else None

    @property
    def whole(self) -> bool:
        """Whether all rows were read."""
        return self.reload is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far weights are behind their run, as of the last look."""

    checkpoints: int
    steps: int
    age_s: float | None  # since the applied checkpoint was taken, by the clocks of writer and reader
