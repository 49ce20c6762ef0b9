"""Which checkpoints others depend on, and which of them are kept for that reason alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUse:
    """How a checkpoint serves others as their base."""

    needed_by: int  # kept checkpoints whose rows stand on it, directly or not
    is_sole_reason: bool  # newer ones of its timeline were dropped, and it has no tag: only its rows are still wanted


def base_uses(checkpoints: Sequence[CheckpointInfo]) -> Mapping[str, BaseUse]:
    """Of each kept checkpoint that others stand on, by its id; checkpoints are given oldest first.

    A run does not store its retention policy. But whatever stands on a checkpoint was trained from it, so where none
    of the kept ones follows it directly, those that did were dropped: it outlived newer ones.
    """
    needed_by = dict.fromkeys((each.id for each in checkpoints), 0)
    for each in reversed(checkpoints):
        if each.base in needed_by:
            needed_by[each.base] += 1 + needed_by[each.id]
    followed = {each.parent for each in checkpoints}
    return {
        each.id: BaseUse(needed_by=count, is_sole_reason=each.tag is None and each.id not in followed)
        for each in checkpoints
        if (count := needed_by[each.id])
    }
