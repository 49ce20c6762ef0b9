"""LoopSettings: how a worker trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.cluster.train.finite import CHOICES, OnNan
from holdfast.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How a worker trains.

    Args:
        lr_tables: The learning rate of tables to begin with.
        lr_dense: That of dense parameters.
        ahead: Batches whose rows are pulled before the steps in front of them are pushed: rows are at most this many
            of the worker's own steps behind. 0 waits for the rows of each batch.
        on_nan: A step whose gradients are NaN or infinite is an error, is left out, or is pushed as it is.
        on_bad_ids: A batch with an id outside its table is an error, or is left out.
        counts_early: Whether one batch more is read than rows are pulled for, so that a GPU counts the rows of its ids
            while the one before it is trained on. None: where a GPU does, and batches are read ahead at all.
    """

    lr_tables: float
    lr_dense: float
    ahead: int = 1
    on_nan: OnNan = "raise"
    on_bad_ids: Literal["raise", "skip"] = "raise"
    counts_early: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ahead, int) or self.ahead < 0:
            raise ConfigurationError(f"ahead must be a whole number of at least 0, got {self.ahead!r}")
        if self.on_nan not in CHOICES:
            raise ConfigurationError(f"on_nan must be one of {', '.join(CHOICES)}, got {self.on_nan!r}")
        if self.on_bad_ids not in ("raise", "skip"):
            raise ConfigurationError(f'on_bad_ids must be "raise" or "skip", got {self.on_bad_ids!r}')
