"""What failures cost a run, derived from its checkpoints and take-overs: lost work, and time when no trainer ran.

No object of a run records when a trainer stopped. But it would have saved again, had it lived for another save
interval: after its last save, at most the longest interval was work. The rest, until the next trainer, was idle time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.events import Happening, HistoryEvent
from holdfast.types import CheckpointInfo

_Moments = Mapping[int, Sequence[float]]  # by term, in order

_BEGINNINGS = (Happening.BEGAN, Happening.TOOK_OVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Work that was lost, at most, and idle time, at least."""

    lost_s: float = 0.0
    idle_s: float = 0.0

    def __add__(self, other: Losses) -> Losses:
        return Losses(lost_s=self.lost_s + other.lost_s, idle_s=self.idle_s + other.idle_s)


def losses(history: Sequence[HistoryEvent], infos: Sequence[CheckpointInfo]) -> tuple[Losses | None, ...]:
    """Of each event; None where it cost nothing, or nothing is known."""
    moments = _moments(history, infos)
    left = [info for info in infos if info.abandoned]
    found: list[Losses | None] = []
    for event in history:
        if event.what is Happening.WENT_BACK:
            mine = [info for info in left if info.created_s <= event.at_s]
            left = [info for info in left if info.created_s > event.at_s]
            found.append(_abandoned(mine, moments) if mine else None)
        else:
            found.append(_between(event, infos, moments))
    return tuple(found)


def _moments(history: Sequence[HistoryEvent], infos: Sequence[CheckpointInfo]) -> _Moments:
    """When each trainer began, and each of its saves."""
    began = [(event.term, event.at_s) for event in history if event.exact and event.what in _BEGINNINGS]
    found: dict[int, list[float]] = {}
    for term, at_s in sorted([*began, *((info.term, info.created_s) for info in infos)]):
        found.setdefault(term, []).append(at_s)
    return found


def _between(event: HistoryEvent, infos: Sequence[CheckpointInfo], moments: _Moments) -> Losses | None:
    """From the last save of the trainer before to the one that took over."""
    if event.idle_s is None:
        return None
    last = max((info for info in infos if info.term < event.term), key=lambda info: info.created_s)
    intervals = [after - before for before, after in pairwise(moments[last.term])]
    lost_s = min(event.idle_s, max(intervals, default=event.idle_s))
    return Losses(lost_s=lost_s, idle_s=event.idle_s - lost_s)


def _abandoned(left: Sequence[CheckpointInfo], moments: _Moments) -> Losses:
    """The training that led from save to save on a timeline that was left."""
    return Losses(lost_s=math.fsum(_since_the_one_before(info.created_s, moments[info.term]) for info in left))


def _since_the_one_before(at_s: float, moments: Sequence[float]) -> float:
    place = bisect_left(moments, at_s)
    return at_s - moments[place - 1] if place else 0.0
