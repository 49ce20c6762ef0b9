"""What to do when a checkpoint is due while the one before is still being written."""

from __future__ import annotations

from enum import Enum


class Overlap(Enum):
    """Two checkpoints never overlap (Check-N-Run, 3.3): the one being written has all of the bandwidth.

    No row is lost by any of these: what changed stays marked until a commit that holds it is confirmed.

    Attributes:
        WAIT: Training waits until the earlier one is committed or has failed. No checkpoint is missed; the loop may
            stall.
        SKIP: The new one is not taken; training goes on and tries again at the next step. The age of the last commit
            grows, and is reported.
        CANCEL: The earlier one is given up for the new one, after its outcome is learnt: it may have been committed
            just before. Where storage is slower than the save interval, no checkpoint may ever be finished.
    """

    WAIT = "wait"
    SKIP = "skip"
    CANCEL = "cancel"
