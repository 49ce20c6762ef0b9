"""Several hosts of one stripe agree on what they hold of a member that died, before any of its rows is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity_messages import Difference, Reconcile, Retold
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.stripes import Layout, Records, StripeSet
from holdfast.cluster.core.vectors import holds


@dataclass(slots=True)
class _Kept:
    difference: Difference
    void: StripeSet  # stripes whose rows came from a save since


class Agreement:
    """What a host keeps for the other hosts of its stripes: nothing, where each stripe has one.

    A member that dies may have told one host of a push and not the other. Rows that the first one gave would then
    hold more than the parity of the second. So hosts keep differences until all have them, and exchange what they
    kept after every death.
    """

    def __init__(self, index: int, layout: Layout, records: Records, peers: Peers) -> None:
        self._index = index
        self._layout = layout
        self._records = records
        self._peers = peers
        self._shared: dict[int, dict[int, StripeSet]] = {}  # by member, by other host: stripes of all three
        for hosts, stripes in layout.by_hosts(layout.hosted(index)).items():
            for member, part in layout.by_member(stripes).items():
                for other in set(hosts) - {index}:
                    theirs = self._shared.setdefault(member, {})
                    theirs[other] = theirs.get(other, layout.none) | part
        self._kept: dict[int, list[_Kept]] = {}  # by member, what not all hosts may have
        self._awaited: dict[int, set[int]] = {}  # by member, the hosts that have not agreed

    def keep(self, member: int, difference: Difference) -> None:
        """A difference came, and says which ones all have."""
        if member in self._shared:
            kept = self._kept.get(member, [])
            rest = [each for each in kept if not holds(difference.stable, each.difference.pushes)]
            self._kept[member] = [*rest, _Kept(difference, self._layout.none)]

    def forget(self, member: int, stripes: StripeSet) -> None:
        """A member has other rows in these stripes: what was kept of the former ones is not theirs."""
        for each in self._kept.get(member, ()):
            each.void |= stripes

    def adopt(self, member: int) -> Iterator[Send]:
        """Another is in a member's place, or in a host's: that one knows nothing."""
        for awaited in self._awaited.values():
            awaited.discard(member)
        others = self._shared.get(member, {})
        self._awaited[member] = set(others)
        incarnation = self._peers.member(member).incarnation
        for other in others:
            kept = [self._retold(member, each, other) for each in self._kept.get(member, [])]
            yield Send(self._peers.member(other), Reconcile(member, incarnation, tuple(kept)))

    def reached(self, member: int, other: int) -> None:
        """Another host has all that is here, and has said what it has."""
        self._awaited.get(member, set()).discard(other)

    def disputed(self, member: int) -> StripeSet:
        """Stripes whose hosts may not have the same of a member."""
        disputed = self._layout.none
        for other in self._awaited.get(member, ()):
            disputed |= self._shared[member][other]
        return disputed

    def _retold(self, member: int, kept: _Kept, other: int) -> Retold:
        difference = kept.difference
        records = self._records.retold(member, difference.records, other, kept.void)
        return Retold(replace(difference, records=records), self._shared[member][other] - kept.void)
