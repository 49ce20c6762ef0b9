"""Records that have come to be encoded, until those of all members of a stripe can be added in one pass.

It does not matter when a record is added to a parity: a sum of bit patterns does not depend on its order, and whether a
difference belongs into the parity was decided when the difference came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Arrays

Together: TypeAlias = tuple[StripeSet, Mapping[int, Arrays]]  # stripes, and by member its records of all of them

_MOST = 8  # sets of stripes of which some members' records wait: whatever else comes, memory is bounded


class Unadded:
    """Members' records that no parity of this server holds yet.

    Args:
        layout: Of its ring.
    """

    def __init__(self, layout: RingLayout) -> None:
        self._layout = layout
        self._waiting: dict[StripeSet, dict[int, Arrays]] = {}

    def take(self, member: int, stripes: StripeSet, records: Arrays) -> Iterator[Together]:
        """A member's records; what is to be added now."""
        if self._layout.dense_of(stripes):  # a copy takes another's place: there, order matters
            yield stripes, {member: records}
            return
        if member in self._waiting.get(stripes, ()):  # it was asked again
            yield from self.rest()
        if len(self._waiting) == _MOST and stripes not in self._waiting:
            yield from self.rest()
        waiting = self._waiting.setdefault(stripes, {})
        waiting[member] = records
        if len(waiting) == self._layout.ring.data:
            yield stripes, self._waiting.pop(stripes)

    def rest(self) -> Iterator[Together]:
        """All that waits, to be added now."""
        waiting, self._waiting = self._waiting, {}
        yield from waiting.items()
