"""Loss and AUC over all workers, from what each of their lives has counted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member
from holdfast.cluster.train.metrics import Metrics


@dataclass(frozen=True, slots=True)
class _Life:
    incarnation: int
    counted: Metrics


@dataclass(frozen=True, slots=True)
class _Lives:
    """What was counted at some moment. A job has any number of lives; what they hold is that of its places."""

    over: Metrics = field(default_factory=Metrics)  # all lives that others came after
    newest: Mapping[int, _Life] = field(default_factory=dict)  # by place

    def hearing(self, member: Member, counted: Metrics) -> _Lives:
        """With what a life has counted by now."""
        before = self.newest.get(member.index)
        if before is not None and before.incarnation > member.incarnation:
            return self
        is_over = before is not None and before.incarnation < member.incarnation
        over = self.over.merge([before.counted]) if before is not None and is_over else self.over
        return _Lives(over, {**self.newest, member.index: _Life(member.incarnation, counted)})

    def together(self) -> Metrics:
        """Of all lives."""
        return self.over.merge(each.counted for each in self.newest.values())


class Measured:
    """Since the job began. What was counted after a checkpoint that everyone goes back to does not count."""

    def __init__(self) -> None:
        self._lives = _Lives()
        self._at = {0: self._lives}  # by save
        self._figures: Mapping[str, float] | None = None  # until something changes: they are shown twice a second

    def hear(self, member: Member, report: bytes) -> None:
        """A report of a worker; some of them have sums that can be merged."""
        found = json.loads(report).get("sums") if report else None
        if found is not None:
            self._change(self._lives.hearing(member, Metrics.from_plain(found)))

    def saved(self, save: int) -> None:
        """What is known now belongs to this save."""
        self._at[save] = self._lives

    def committed(self, save: int) -> None:
        """Nobody goes back further."""
        self._at = {number: each for number, each in self._at.items() if number >= save}

    def went_back(self, save: int) -> None:
        """Everyone did."""
        self._change(self._at.get(save, _Lives()))

    def figures(self) -> Mapping[str, float]:
        """Those that there are, by name."""
        if self._figures is None:
            found = self._lives.together()
            figures = {"loss": found.loss, "auc": found.auc}
            self._figures = {name: each for name, each in figures.items() if each is not None and math.isfinite(each)}
        return self._figures

    def _change(self, lives: _Lives) -> None:
        self._lives, self._figures = lives, None
