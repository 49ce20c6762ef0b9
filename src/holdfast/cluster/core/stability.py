"""Which pushes are in every parity that they concern."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Push:
    number: int
    worker: int
    hosts: set[int]  # that have not acknowledged it
    differences: Mapping[int, Any]  # by host, where others than those may need them


class Stability:
    """What a server has applied, and its hosts have not acknowledged yet. Workers' credits bound it."""

    def __init__(self) -> None:
        self._pushes: dict[int, deque[_Push]] = {}  # by worker, from the first that is not stable
        self._order: deque[_Push] = deque()  # as they were applied, from one that is not stable on
        self._sent: dict[int, deque[_Push]] = {}  # by host, not acknowledged
        self._acknowledged: dict[int, int] = {}  # by host, how many

    def add(self, worker: int, number: int, hosts: Iterable[int], differences: Mapping[int, Any]) -> None:
        """A push was applied, and differences are on their way to these hosts."""
        push = _Push(number, worker, set(hosts), differences)
        self._order.append(push)
        self._pushes.setdefault(worker, deque()).append(push)
        for host in push.hosts:
            self._sent.setdefault(host, deque()).append(push)
        self._trim(worker)

    def absorbed(self, host: int, count: int) -> None:
        """A host has so many differences."""
        sent = self._sent.get(host, deque())
        for _ in range(count - self._acknowledged.get(host, 0)):
            self._settle(sent.popleft(), host)
        self._acknowledged[host] = count

    def forget(self, host: int) -> None:
        """A host died. Whoever takes its place gets rows, not differences, and nothing waits for that."""
        self._acknowledged.pop(host, None)
        for push in self._sent.pop(host, ()):
            self._settle(push, host)

    def late(self, host: int) -> Iterator[tuple[int, int, Any]]:
        """To a host that listens from now on: worker, number and difference of each push that not all hosts have."""
        for push in self._order:
            if push.hosts and host in push.differences and host not in push.hosts:
                push.hosts.add(host)
                self._sent.setdefault(host, deque()).append(push)
                yield push.worker, push.number, push.differences[host]

    def stable(self, worker: int, applied: int) -> int:
        """The last push up to which all are stable, of those that are applied."""
        pushes = self._pushes.get(worker)
        return pushes[0].number - 1 if pushes else applied

    def _settle(self, push: _Push, host: int) -> None:
        push.hosts.discard(host)
        self._trim(push.worker)

    def _trim(self, worker: int) -> None:
        pushes = self._pushes[worker]
        while pushes and not pushes[0].hosts:
            pushes.popleft()
        while self._order and not self._order[0].hosts:
            self._order.popleft()
