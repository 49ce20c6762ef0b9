"""Loss and AUC over all workers, from what each of their lives has counted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from holdfast.cluster.core.members import Member
from holdfast.cluster.train.metrics import Metrics


class Measured:
    """Since the job began. What was counted after a checkpoint that everyone goes back to does not count."""

    def __init__(self) -> None:
        self._lives: dict[Member, Metrics] = {}
        self._at: dict[int, dict[Member, Metrics]] = {0: {}}  # by save

    def hear(self, member: Member, report: bytes) -> None:
        """A report of a worker; some of them have sums that can be merged."""
        found = json.loads(report).get("sums") if report else None
        if found is not None:
            self._lives[member] = Metrics.from_plain(found)

    def saved(self, save: int) -> None:
        """What is known now belongs to this save."""
        self._at[save] = dict(self._lives)

    def committed(self, save: int) -> None:
        """Nobody goes back further."""
        self._at = {number: each for number, each in self._at.items() if number >= save}

    def went_back(self, save: int) -> None:
        """Everyone did."""
        self._lives = dict(self._at.get(save, {}))

    @property
    def together(self) -> Metrics:
        """Of all lives of all workers."""
        return Metrics().merge(self._lives.values())

    def figures(self) -> Mapping[str, float]:
        """Those that there are, by name."""
        found = self.together
        figures = {"loss": found.loss, "auc": found.auc}
        return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
