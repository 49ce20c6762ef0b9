"""What a retention policy would do to a run, and why, before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.policy import Retention, closure
from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a prune would keep a checkpoint, and why.

    Args:
        checkpoint: The checkpoint.
        stays: Whether it would be kept.
        needed_by: The first kept checkpoint that depends on it, if the policy alone would drop it.
    """

    checkpoint: CheckpointInfo
    stays: bool
    needed_by: CheckpointInfo | None = None


def judge(checkpoints: Sequence[CheckpointInfo], retention: Retention, now_s: float) -> list[Verdict]:
    """A verdict on each checkpoint, in their order (oldest first)."""
    kept = retention.kept(checkpoints, now_s)
    stays = closure(checkpoints, kept)
    needed_by: dict[str, CheckpointInfo] = {}
    for info in checkpoints:
        if info.id in kept:
            for base in closure(checkpoints, [info.id]) - kept:
                needed_by.setdefault(base, info)
    return [Verdict(checkpoint=info, stays=info.id in stays, needed_by=needed_by.get(info.id)) for info in checkpoints]
