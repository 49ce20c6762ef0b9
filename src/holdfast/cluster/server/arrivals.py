"""In which order a server handles what has arrived: workers wait for rows, and nobody waits for a parity."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Message, Pull

Arrived: TypeAlias = tuple[Member, Message]


class Arrivals:
    """Pulls first, then whatever else is not from servers, then what these say, one message at a time.

    Between two messages of servers it is looked for others again. Each stream stays in its order.

    Args:
        receive: What has arrived; waits for something, for so long at most.
    """

    def __init__(self, receive: Callable[[float], list[Arrived]]) -> None:
        self._receive = receive
        self._later: deque[Arrived] = deque()  # from servers

    def next(self, patience_s: float) -> list[Arrived]:
        """What to handle now; waits for so long at most, if there is nothing."""
        arrived = self._receive(0.0 if self._later else patience_s)
        self._later.extend(each for each in arrived if each[0].role is Role.SERVER)
        first = _pulls_first(each for each in arrived if each[0].role is not Role.SERVER)
        return [*first, self._later.popleft()] if self._later else first


def _pulls_first(arrived: Iterable[Arrived]) -> list[Arrived]:
    """Except those behind something else of their own stream."""
    pulls, others, busy = [], [], set()
    for sender, message in arrived:
        if isinstance(message, Pull) and sender not in busy:
            pulls.append((sender, message))
        else:
            others.append((sender, message))
            busy.add(sender)
    return [*pulls, *others]
