"""What to do when a checkpoint is due while the previous one is still being written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Overlap(Enum):
    """What to do when a save is due while the previous one is still being written.

    Two saves never overlap (Check-N-Run, 3.3): the one being written gets the full bandwidth. No choice loses rows: a
    changed row stays marked until a commit that holds it is confirmed.

    Attributes:
        WAIT: Training waits until the earlier one is committed or has failed. No checkpoint is missed; the loop may
            stall.
        SKIP: The new one is not taken; training continues and tries again at the next step. The age of the last commit
            grows, and is logged.
        CANCEL: The earlier one is given up for the new one, unless it turns out to be committed already. If storage is
            slower than the save interval, no checkpoint may ever finish.
    """

    WAIT = "wait"
    SKIP = "skip"
    CANCEL = "cancel"


class Before(Enum):
    """What happens to the save in progress before another one is taken."""

    AWAIT = "await"
    CANCEL = "cancel"
    SKIP = "skip"
    """Nothing: it is the other one that is not taken now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapContext:
    """A save is due, perhaps while another one, ``under_way``, has not ended."""

    overlap: Overlap
    rows_only: bool  # the save that is due is no checkpoint, but holds rows between two of them
    under_way: bool
    under_way_rows_only: bool
    is_forced: bool  # it waits instead of being skipped
    may_retry: bool  # the pause after a failed save is over


def before_save(context: OverlapContext) -> Before:
    """What comes first. Priority saves give way to checkpoints; a save that failed is not retried immediately."""
    if context.rows_only:
        return _before_rows(context)
    if context.under_way and context.under_way_rows_only:
        return Before.CANCEL  # the checkpoint holds its rows as well
    if context.under_way and not context.is_forced and context.overlap is Overlap.SKIP:
        return Before.SKIP
    if not context.is_forced and not context.may_retry:
        return Before.SKIP
    if context.under_way and (context.is_forced or context.overlap is Overlap.WAIT):
        return Before.AWAIT
    return Before.CANCEL  # also where it is over here: another rank's agent that has not noticed need not go on


def _before_rows(context: OverlapContext) -> Before:
    """A priority save may have to wait, but it is taken, with the values of that time."""
    if not context.may_retry:
        return Before.SKIP
    if not context.under_way or context.overlap is Overlap.WAIT:
        return Before.AWAIT
    return Before.SKIP
