"""Which checkpoints to keep, as sets: ``|`` keeps what either keeps, ``&`` only what both keep.

``(KeepLast(3) | KeepBest("auc")) & TimeToLive(days=14)`` keeps the last three and the best one, none of them longer
than 14 days. Mind the parentheses: ``&`` binds more tightly than ``|``.

Whatever the policy says, the newest checkpoint of the live timeline is kept (if all are abandoned, the newest of
those), so pruning never leaves a run with nothing to resume from. A suspect checkpoint is also kept until a
verification has cleared or condemned it: it may be intact, and the store that could not read it at fault.

Abandoned checkpoints are on a timeline that was left by going back, often because it had gone wrong. ``KeepLast``,
``KeepEvery`` and ``KeepBest`` ignore them. ``KeepAll`` and ``TimeToLive`` do; so does ``KeepTagged``, because a name is
a user's explicit wish.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import CheckpointNotFound
from holdfast.policy.arguments import require, require_count, require_duration
from holdfast.policy.base import Composite, Policy, flattened, registered
from holdfast.types import CheckpointInfo, Doubt

_DAY_S = 24 * 60 * 60


class Retention(Policy, ABC):
    """Decides which checkpoints stay. Checkpoints are given oldest first.

    Pruning is idempotent: a second pruning at the same moment drops nothing.
    """

    __slots__ = ()

    @property
    def keeps_all(self) -> bool:
        """Whether it never drops a checkpoint, so nothing needs to be examined."""
        return False

    def kept(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        """Ids of the checkpoints to keep. Their rows may depend on others: see ``closure``.

        Args:
            checkpoints: All checkpoints of the run, oldest first.
            now_s: The current time, in seconds since 1970.
        """
        return self.chosen(checkpoints, now_s) | _newest(checkpoints) | _suspect(checkpoints)

    @abstractmethod
    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        """The policy's own choice, before the newest checkpoint and suspect ones are added to it.

        Args:
            checkpoints: All checkpoints of the run, oldest first.
            now_s: The current time, in seconds since 1970.
        """

    def __or__(self, other: Retention) -> Retention:
        return KeptByAny(flattened(KeptByAny, self, other)) if isinstance(other, Retention) else NotImplemented

    def __and__(self, other: Retention) -> Retention:
        return KeptByAll(flattened(KeptByAll, self, other)) if isinstance(other, Retention) else NotImplemented


@registered("keep_all")
@dataclass(frozen=True, slots=True)
class KeepAll(Retention):
    """Every checkpoint, including abandoned timelines."""

    @property
    def keeps_all(self) -> bool:
        return True

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return _ids(checkpoints)


@registered("keep_last")
@dataclass(frozen=True, slots=True)
class KeepLast(Retention):
    """The newest checkpoints of the live timeline.

    Args:
        n: How many, at least 1.
    """

    n: int

    def __post_init__(self) -> None:
        require_count(self, "n", self.n)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return _ids(_live(checkpoints)[-self.n :])


@registered("keep_every")
@dataclass(frozen=True, slots=True)
class KeepEvery(Retention):
    """The first checkpoint at or after each multiple of ``n_steps``, so saves at other steps still leave a trail.

    Args:
        n_steps: How many steps apart, at least 1.
    """

    n_steps: int

    def __post_init__(self) -> None:
        require_count(self, "n_steps", self.n_steps)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        first_of: dict[int, CheckpointInfo] = {}
        for checkpoint in _live(checkpoints):
            if checkpoint.step == 0 or checkpoint.step >= self.n_steps:
                first_of.setdefault(checkpoint.step // self.n_steps, checkpoint)
        return _ids(first_of.values())


@registered("keep_best")
@dataclass(frozen=True, slots=True)
class KeepBest(Retention):
    """The best checkpoints of the live timeline by a metric; the newer one if equal.

    A checkpoint without the metric, or with NaN, is not chosen. If metrics arrive after the save, add a ``KeepLast``
    long enough for them to arrive.

    Args:
        metric: Its name, as passed to ``step()`` or ``annotate()``.
        mode: "max" if higher is better, "min" if lower is.
        n: How many, at least 1.
    """

    metric: str
    mode: Literal["max", "min"] = "max"
    n: int = 1

    def __post_init__(self) -> None:
        require(isinstance(self.metric, str) and self.metric != "", self, "metric", "a metric's name", self.metric)
        require(self.mode in ("max", "min"), self, "mode", '"max" or "min"', self.mode)
        require_count(self, "n", self.n)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        measured = [each for each in _live(checkpoints) if not math.isnan(self._score(each.metrics))]
        ascending = sorted(measured, key=lambda each: self._score(each.metrics))  # stable: the newer of equals is last
        return _ids(ascending[-self.n :])

    def _score(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self.metric, math.nan)
        return value if self.mode == "max" else -value


@registered("keep_tagged")
@dataclass(frozen=True, slots=True)
class KeepTagged(Retention):
    """Checkpoints saved under a name, ``guard.save(tag=...)``, on any timeline."""

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return _ids(each for each in checkpoints if each.tag is not None)


@registered("time_to_live")
@dataclass(frozen=True, slots=True)
class TimeToLive(Retention):
    """Checkpoints at most ``days`` old, on any timeline. On its own it keeps all of them; after ``&`` it limits others.

    Args:
        days: How old, above 0.
    """

    days: float = 14

    def __post_init__(self) -> None:
        require_duration(self, "days", self.days)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return _ids(each for each in checkpoints if now_s - each.created_s <= self.days * _DAY_S)


@registered("kept_by_any")
@dataclass(frozen=True, slots=True, repr=False)
class KeptByAny(Composite[Retention], Retention):
    """The union: what ``|`` makes."""

    FAMILY = Retention
    SYMBOL = "|"

    @property
    def keeps_all(self) -> bool:
        return any(part.keeps_all for part in self.parts)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return frozenset[str]().union(*(part.chosen(checkpoints, now_s) for part in self.parts))


@registered("kept_by_all")
@dataclass(frozen=True, slots=True, repr=False)
class KeptByAll(Composite[Retention], Retention):
    """The intersection: what ``&`` makes."""

    FAMILY = Retention
    SYMBOL = "&"

    @property
    def keeps_all(self) -> bool:
        return all(part.keeps_all for part in self.parts)

    def chosen(self, checkpoints: Sequence[CheckpointInfo], now_s: float) -> frozenset[str]:
        return _ids(checkpoints).intersection(*(part.chosen(checkpoints, now_s) for part in self.parts))


def closure(checkpoints: Iterable[CheckpointInfo], kept: Iterable[str]) -> frozenset[str]:
    """``kept`` and every checkpoint they depend on: what must not be deleted.

    Raises CheckpointNotFound when one of them is not among ``checkpoints``; nothing may be deleted then.
    """
    base_of = {checkpoint.id: checkpoint.base for checkpoint in checkpoints}
    needed: set[str] = set()
    for kept_id in kept:
        current: str | None = kept_id
        while current is not None and current not in needed:
            if current not in base_of:
                raise CheckpointNotFound(_missing(kept_id, current))
            needed.add(current)
            current = base_of[current]
    return frozenset(needed)


def _missing(kept_id: str, missing_id: str) -> str:
    if kept_id == missing_id:
        return f"checkpoint {kept_id} should be kept, but the run does not list it"
    return f"checkpoint {kept_id} depends on {missing_id}, which the run does not list: verify the run, delete nothing"


def _ids(checkpoints: Iterable[CheckpointInfo]) -> frozenset[str]:
    return frozenset(checkpoint.id for checkpoint in checkpoints)


def _live(checkpoints: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    return [checkpoint for checkpoint in checkpoints if not checkpoint.abandoned]


def _newest(checkpoints: Sequence[CheckpointInfo]) -> frozenset[str]:
    return _ids((_live(checkpoints) or checkpoints)[-1:])


def _suspect(checkpoints: Iterable[CheckpointInfo]) -> frozenset[str]:
    return _ids(each for each in checkpoints if each.doubt is Doubt.SUSPECT)
