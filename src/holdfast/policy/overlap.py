"""What to do when a checkpoint is due while the one before is still being written."""

from __future__ import annotations

from enum import Enum


class Overlap(Enum):
    """Two checkpoints never overlap (Check-N-Run, 3.3): the one being written has all of the bandwidth."""

    WAIT = "wait"
    """Training waits until the earlier one is committed or has failed. No checkpoint is missed; the loop may stall."""

    SKIP = "skip"
    """The new one is not taken; training goes on and tries again at the next step. The age of the last commit grows,
    and is reported. No row is lost: what changed stays marked."""

    CANCEL = "cancel"
    """The earlier one is given up for the new one, after its outcome is learnt: it may have been committed just before.
    Where storage is slower than the save interval, this can starve: no checkpoint is ever finished."""
