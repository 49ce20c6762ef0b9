"""Progress: how a job goes, every few seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a job goes, as its members last said.

    Args:
        step: Optimizer steps that workers have pushed.
        samples_per_s: Of all workers, lately.
        rows_per_s: That servers read and updated, lately.
        behind: Of its own steps, how many some worker's rows may lack at the most. None: no worker has told.
        loss: On the average of the workers' last steps. None: none has told.
        pls: The portion of lost samples by now. None: not metered.
        at_s: When that was, since 1970.
    """

    step: int
    samples_per_s: float
    rows_per_s: float
    behind: int | None
    loss: float | None
    pls: float | None
    at_s: float
