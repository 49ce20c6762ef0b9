"""Which pushes are in every parity that they concern."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cluster.core.vectors import Vector


@dataclass(slots=True)
class _Told:
    """Pushes that hosts were told of in one difference each."""

    first: Vector  # by worker
    last: Vector
    hosts: set[int]  # that have not acknowledged it
    differences: Mapping[int, Any]  # by host, where others than those may need them


class Stability:
    """What a server has applied, and its hosts have not acknowledged yet. Workers' credits bound it."""

    def __init__(self) -> None:
        self._untold: dict[int, tuple[int, int]] = {}  # by worker, the first and the last push that no host heard of
        self._by_worker: dict[int, deque[_Told]] = {}  # from the first that is not stable
        self._order: deque[_Told] = deque()  # as they were told, from one that is not stable on
        self._sent: dict[int, deque[_Told]] = {}  # by host, not acknowledged
        self._acknowledged: dict[int, int] = {}  # by host, how many

    def apply(self, worker: int, number: int) -> int:
        """A push was applied, and hosts will be told of it. How many of its worker there are of these now."""
        first, _ = self._untold.get(worker, (number, number))
        self._untold[worker] = (first, number)
        return number - first + 1

    @property
    def untold(self) -> int:
        """How many pushes were applied that hosts were not told of."""
        return sum(last - first + 1 for first, last in self._untold.values())

    def tell(self, hosts: Iterable[int], differences: Mapping[int, Any]) -> Vector:
        """Differences of all that was applied are on their way to these hosts: by worker, the last push in them."""
        first = {worker: number for worker, (number, _) in self._untold.items()}
        last = {worker: number for worker, (_, number) in self._untold.items()}
        told = _Told(first, last, set(hosts), differences)
        self._untold.clear()
        self._order.append(told)
        for worker in last:
            self._by_worker.setdefault(worker, deque()).append(told)
        for host in told.hosts:
            self._sent.setdefault(host, deque()).append(told)
        self._trim(told)
        return last

    def absorbed(self, host: int, count: int) -> None:
        """A host has so many differences."""
        sent = self._sent.get(host, deque())
        for _ in range(count - self._acknowledged.get(host, 0)):
            self._settle(sent.popleft(), host)
        self._acknowledged[host] = count

    def forget(self, host: int) -> None:
        """A host died. Whoever takes its place gets rows, not differences, and nothing waits for that."""
        self._acknowledged.pop(host, None)
        for told in self._sent.pop(host, ()):
            self._settle(told, host)

    def late(self, host: int) -> Iterator[tuple[Vector, Any]]:
        """To a host that listens from now on: each difference that not all hosts have, and the last pushes in it."""
        for told in self._order:
            if told.hosts and host in told.differences and host not in told.hosts:
                told.hosts.add(host)
                self._sent.setdefault(host, deque()).append(told)
                yield told.last, told.differences[host]

    def stable(self, worker: int, applied: int) -> int:
        """The last push up to which all are stable, of those that are applied."""
        if waiting := self._by_worker.get(worker):
            return waiting[0].first[worker] - 1
        return self._untold[worker][0] - 1 if worker in self._untold else applied

    def all_stable(self, applied: Vector) -> Vector:
        """The same for every worker."""
        return {worker: self.stable(worker, number) for worker, number in applied.items()}

    def _settle(self, told: _Told, host: int) -> None:
        told.hosts.discard(host)
        self._trim(told)

    def _trim(self, told: _Told) -> None:
        for worker in told.last:
            waiting = self._by_worker[worker]
            while waiting and not waiting[0].hosts:
                waiting.popleft()
        while self._order and not self._order[0].hosts:
            self._order.popleft()
