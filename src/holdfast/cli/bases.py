"""Which checkpoints others depend on, and which of them are kept for that reason alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.types import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUse:
    """How others use a checkpoint as their base."""

    needed_by: int  # kept checkpoints that depend on it, directly or not
    is_likely_sole_reason: bool  # the checkpoints that directly followed it were dropped, and it has no tag


def base_uses(checkpoints: Sequence[CheckpointInfo]) -> Mapping[str, BaseUse]:
    """Base uses of the kept checkpoints that others depend on, by id; checkpoints are given oldest first.

    A run does not store its retention policy, so why a checkpoint is kept can only be inferred. Whatever depends on a
    checkpoint was trained from it; if no kept checkpoint follows it directly, those that did were dropped. That
    suggests that it is kept only as a base, but a policy such as ``KeepEvery`` or ``KeepBest`` may have chosen it.
    """
    needed_by = dict.fromkeys((each.id for each in checkpoints), 0)
    for each in reversed(checkpoints):
        if each.base in needed_by:
            needed_by[each.base] += 1 + needed_by[each.id]
    followed = {each.parent for each in checkpoints}
    return {
        each.id: BaseUse(needed_by=count, is_likely_sole_reason=each.tag is None and each.id not in followed)
        for each in checkpoints
        if (count := needed_by[each.id])
    }
