"""When differences and acknowledgements leave a server: nobody waits for them, so they leave together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.notes import Differences
from holdfast.cluster.core.parity_messages import Absorbed, Difference
from holdfast.runtime import SYSTEM, Runtime

_LONGEST_S = 0.02
_MOST_PUSHES = 2  # of a worker: twice as many wait, here and with the host's answer, and workers have credits for more


@dataclass(slots=True)
class Departures:
    """Holds back differences and acknowledgements, until they are several, have waited for long, or others leave.

    A message costs both its ends far more than what it carries. What waits for a member goes out as one, and before
    anything else on its stream. So for the protocol it is a stream that is slow for a moment. Of acknowledgements, a
    newer one says all that an older one did.

    Args:
        is_waited_for: Whether somebody waits for every one: they go out as soon as messages that arrived are handled.
        runtime: Clock.
    """

    is_waited_for: bool
    runtime: Runtime = SYSTEM
    _differences: dict[Member, list[Difference]] = field(default_factory=dict)
    _owed: dict[Member, int] = field(default_factory=dict)  # acknowledgements
    _since_s: float | None = None  # since when something waits

    def passed(self, sends: Iterable[Send]) -> Iterator[Send]:
        """What goes out now of what was to be sent."""
        for each in sends:
            match each.message:
                case Difference(worker) as difference:
                    self._begin_to_wait()
                    waiting = self._differences.setdefault(each.to, [])
                    waiting.append(difference)
                    if sum(other.worker == worker for other in waiting) == _MOST_PUSHES and not self.is_waited_for:
                        yield from self._all_to(each.to)
                case Absorbed(count):
                    self._begin_to_wait()
                    self._owed[each.to] = count
                case _:
                    yield from self._all_to(each.to)
                    yield each

    def due(self) -> list[Send]:
        """What has waited for long."""
        if self._since_s is None or self._left_s > 0:
            return []
        return [each for member in {**self._differences, **self._owed} for each in self._all_to(member)]

    def patience_s(self, most_s: float) -> float:
        """How long to wait for messages before something is due."""
        return most_s if self._since_s is None else min(most_s, max(self._left_s, 0.0))

    def _begin_to_wait(self) -> None:
        if self._since_s is None:
            self._since_s = self.runtime.monotonic_s()

    def _all_to(self, member: Member) -> Iterator[Send]:
        owed, waiting = self._owed.pop(member, 0), self._differences.pop(member, None)
        if waiting is not None:
            yield Send(member, Differences(tuple(waiting), owed))
        elif owed:
            yield Send(member, Absorbed(owed))
        if not (self._differences or self._owed):
            self._since_s = None

    @property
    def _left_s(self) -> float:
        since_s = self.runtime.monotonic_s() if self._since_s is None else self._since_s
        return 0.0 if self.is_waited_for else since_s + _LONGEST_S - self.runtime.monotonic_s()
