"""Acknowledgements that wait for a difference to travel with: servers that apply a push have one for most others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity_messages import Absorbed, Difference
from holdfast.runtime import SYSTEM, Runtime

_LONGEST_S = 0.015  # about a step: workers have credits for several pushes, and wait for no single one


@dataclass(slots=True)
class Acknowledgements:
    """Holds back what hosts acknowledge, until it can go with something else or has waited for long.

    A newer one of a stream says all that an older one did. One that waits goes out before anything else does on its
    stream. So for the protocol it is a stream that is slow for a moment.

    Args:
        is_waited_for: Whether somebody waits for every one: they go out as soon as messages that arrived are handled.
        runtime: Clock.
    """

    is_waited_for: bool
    runtime: Runtime = SYSTEM
    _owed: dict[Member, int] = field(default_factory=dict)
    _since_s: float = 0.0

    def passed(self, sends: Iterable[Send]) -> Iterator[Send]:
        """What goes out now of what was to be sent."""
        for each in sends:
            match each.message:
                case Absorbed(count):
                    self._since_s = self._since_s if self._owed else self.runtime.monotonic_s()
                    self._owed[each.to] = count
                case Difference(worker, number, records, stable):
                    owed = self._owed.pop(each.to, 0)
                    yield Send(each.to, Difference(worker, number, records, stable, owed))
                case _:
                    if (owed := self._owed.pop(each.to, 0)) > 0:
                        yield Send(each.to, Absorbed(owed))
                    yield each

    def due(self) -> list[Send]:
        """What has waited for long."""
        if not self._owed or self._left_s > 0:
            return []
        owed, self._owed = self._owed, {}
        return [Send(member, Absorbed(count)) for member, count in owed.items()]

    def patience_s(self, most_s: float) -> float:
        """How long to wait for messages before some are due."""
        return min(most_s, max(self._left_s, 0.0)) if self._owed else most_s

    @property
    def _left_s(self) -> float:
        return 0.0 if self.is_waited_for else self._since_s + _LONGEST_S - self.runtime.monotonic_s()
