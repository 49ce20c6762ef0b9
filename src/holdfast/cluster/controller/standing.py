"""How it goes: what members last said of themselves, and how that changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.members import Member, Role

_WINDOW_S = 5.0  # over which rates are taken


@dataclass(slots=True)
class _Count:
    """What one place has done, over all its lives: each of them counts from 0."""

    total: float = 0.0
    life: int = 0
    last: float = 0.0  # of this life
    seen: list[tuple[float, float]] = field(default_factory=list)  # times, and totals

    def hear(self, life: int, count: float, at_s: float) -> None:
        self.total += count - self.last if life == self.life and count >= self.last else count
        self.life, self.last = life, count
        self.seen.append((at_s, self.total))
        self._trim(at_s)

    def per_s(self, now_s: float) -> float:
        """Whoever says nothing more becomes slow."""
        self._trim(now_s)
        if len(self.seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        took_s = max(now_s, last_s) - first_s
        return (last - first) / took_s if took_s > 0 else 0.0

    def _trim(self, now_s: float) -> None:
        while len(self.seen) > 1 and self.seen[1][0] < now_s - _WINDOW_S:
            self.seen.pop(0)


class Standing:
    """The last report of every place; a replacement's takes the place of its predecessor's.

    Args:
        steps: That workers had taken when the job began, by place: of those as well who have left.
    """

    def __init__(self, steps: Mapping[int, int] | None = None) -> None:
        self.workers: dict[int, dict[str, Any]] = {}  # of those who are there
        self._steps = dict(steps or {})
        self._left: dict[int, float] = {}  # samples that workers had taken when they left
        self._count: int | None = None  # of workers; None: as many as report
        self._samples: dict[int, _Count] = {}
        self._rows: dict[int, _Count] = {}

    def hear(self, sender: Member, report: bytes, at_s: float) -> None:
        """A member said how it goes."""
        found: dict[str, Any] = json.loads(report)
        if sender.role is Role.SERVER:
            moved = float(found.get("pulled_rows", 0)) + float(found.get("pushed_rows", 0))
            self._rows.setdefault(sender.index, _Count()).hear(sender.incarnation, moved, at_s)
        elif self._count is None or sender.index < self._count:
            self.workers[sender.index] = found
            self._steps[sender.index] = int(found.get("steps", 0))
            samples = float(found.get("samples", 0))
            self._samples.setdefault(sender.index, _Count()).hear(sender.incarnation, samples, at_s)

    def has_heard(self, worker: Member) -> bool:
        """Whether it has taken a step, or come to its end, in this life."""
        count = self._samples.get(worker.index)
        return count is not None and count.life == worker.incarnation

    def forget(self, member: Member) -> None:
        """It is dead: its speed counts no more."""
        count = (self._rows if member.role is Role.SERVER else self._samples).get(member.index)
        if count is not None and count.life == member.incarnation:
            count.seen.clear()

    def resized(self, workers: int) -> None:
        """So many are there from now on. What others say late is not heard."""
        self._count = workers
        self._left = {index: samples for index, samples in self._left.items() if index >= workers}
        for index in [each for each in self.workers if each >= workers]:
            report = self.workers.pop(index)
            self._left[index] = (report.get("samples_per_step") or 0.0) * self._steps[index]

    def step(self, *, synchronous: bool) -> int:
        """Optimizer steps that workers have pushed: each of them one, or all of them together one."""
        steps = self._steps.values()
        return max(steps, default=0) if synchronous else sum(steps)

    def steps_of(self, worker: int) -> int:
        """That the one in this place has taken, over all its lives, as it last said."""
        return self._steps.get(worker, 0)

    @property
    def samples(self) -> float:
        """That workers have trained on in this job, those that were lost or taken again included."""
        return sum(each.total for each in self._samples.values())

    @property
    def rows(self) -> float:
        """That servers have read and updated in this job."""
        return sum(each.total for each in self._rows.values())

    def samples_per_s(self, now_s: float) -> float:
        """Of all workers, lately."""
        return sum(each.per_s(now_s) for each in self._samples.values())

    def rows_per_s(self, now_s: float) -> float:
        """That servers read and update, lately."""
        return sum(each.per_s(now_s) for each in self._rows.values())

    def worker_speed(self, index: int, now_s: float) -> float:
        """Samples per second of one worker."""
        count = self._samples.get(index)
        return 0.0 if count is None else count.per_s(now_s)

    def server_speed(self, index: int, now_s: float) -> float:
        """Rows per second of one server."""
        count = self._rows.get(index)
        return 0.0 if count is None else count.per_s(now_s)

    @property
    def mean_loss(self) -> float | None:
        """Over all workers that have told one."""
        return _mean(self._told("loss"))

    @property
    def samples_per_step(self) -> float | None:
        """On the average of all workers; None before one has told."""
        return _mean(self._told("samples_per_step"))

    @property
    def expected_samples(self) -> float | None:
        """Of the whole training; None before all workers have told, or where one does not know."""
        told = self._told("expected_samples")
        return sum(told) + sum(self._left.values()) if told and len(told) == len(self.workers) else None

    @property
    def most_behind(self) -> int | None:
        """Of its own steps, that some worker's rows may lack: read ahead of them, or pushed and not yet applied."""
        return max((int(each) for each in self._told("behind")), default=None)

    def _told(self, name: str) -> list[float]:
        return [float(each[name]) for each in self.workers.values() if each.get(name) is not None]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
