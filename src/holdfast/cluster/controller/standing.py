"""How it goes: what members last said of themselves, and how that changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.members import Member, Role

_WINDOW_S = 5.0  # over which rates are taken


@dataclass(slots=True)
class _Rate:
    """How fast a count grows. A replacement begins anew, and a count that fell is a new one."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at_s: float, count: float) -> None:
        if self.samples and count < self.samples[-1][1]:
            self.samples.clear()
        self.samples.append((at_s, count))
        while len(self.samples) > 2 and self.samples[1][0] < at_s - _WINDOW_S:
            self.samples.pop(0)

    @property
    def per_s(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class Standing:
    """The last report of every place; a replacement's takes the place of its predecessor's."""

    def __init__(self) -> None:
        self.workers: dict[int, dict[str, Any]] = {}
        self.servers: dict[int, dict[str, Any]] = {}
        self._samples: dict[int, _Rate] = {}
        self._rows: dict[int, _Rate] = {}

    def hear(self, sender: Member, report: bytes, at_s: float) -> None:
        """A member said how it goes."""
        found: dict[str, Any] = json.loads(report)
        if sender.role is Role.SERVER:
            self.servers[sender.index] = found
            moved = float(found.get("pulled_rows", 0)) + float(found.get("pushed_rows", 0))
            self._rows.setdefault(sender.index, _Rate()).add(at_s, moved)
        else:
            self.workers[sender.index] = found
            self._samples.setdefault(sender.index, _Rate()).add(at_s, float(found.get("samples", 0)))

    def forget(self, member: Member) -> None:
        """It is dead: its speed counts no more."""
        rates = self._rows if member.role is Role.SERVER else self._samples
        rates.pop(member.index, None)

    def step(self, *, synchronous: bool) -> int:
        """Optimizer steps that workers have pushed: each of them one, or all of them together one."""
        steps = [int(each.get("steps", 0)) for each in self.workers.values()]
        return max(steps, default=0) if synchronous else sum(steps)

    @property
    def samples_per_s(self) -> float:
        """Of all workers."""
        return sum(each.per_s for each in self._samples.values())

    @property
    def rows_per_s(self) -> float:
        """That servers read and update."""
        return sum(each.per_s for each in self._rows.values())

    def worker_speed(self, index: int) -> float:
        """Samples per second of one worker."""
        rate = self._samples.get(index)
        return 0.0 if rate is None else rate.per_s

    def server_speed(self, index: int) -> float:
        """Rows per second of one server."""
        rate = self._rows.get(index)
        return 0.0 if rate is None else rate.per_s

    def mean_loss(self) -> float | None:
        """Over all workers that have told one."""
        found = [each["loss"] for each in self.workers.values() if each.get("loss") is not None]
        return sum(found) / len(found) if found else None

    def reports(self) -> Mapping[int, Mapping[str, Any]]:
        """Of workers."""
        return self.workers
