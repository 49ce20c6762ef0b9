"""Which of its rows a server has, while it takes those of a predecessor from parities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from holdfast.cluster.core.layers import Layers
from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity_messages import Dropped, Drops, Fell, Given, Refused, Want
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.stripes import Hosts, Layout, Records, StripeSet, Syndrome
from holdfast.cluster.core.vectors import Vector, joined, pushed


@dataclass(slots=True)
class _Wanted:
    host: int
    hosts: Hosts
    stripes: StripeSet  # not answered yet
    is_block: bool  # nobody waits for these


@dataclass(slots=True)
class _Found:
    """A syndrome in which another row is lost too, so that a second one is needed."""

    host: int
    lost: tuple[Member, ...]
    syndrome: Syndrome
    stripes: StripeSet  # that are still missing, and may be solved with it


class Possession:
    """The rows of one server.

    Rows that a host decoded hold the pushes that the host had seen of any predecessor; rows that came from a save hold
    what was saved. Both may be more than the server has applied itself: workers send that again, and it is skipped
    where it is held. Once the server has applied as much as any of its rows hold, they are all alike.
    """

    def __init__(
        self, index: int, layout: Layout, records: Records, peers: Peers, *, soon: int = 0, rebuild: bool
    ) -> None:
        self._index = index
        self._layout = layout
        self._records = records
        self._peers = peers
        self._soon = soon
        self.missing = layout.owned(index) if rebuild else layout.none
        self.doomed = layout.none  # those of them that no host can give
        self._fallen = layout.none  # those of them that came from a save, and wait until hosts have dropped the former
        self._undropped: dict[int, StripeSet] = {}  # by host
        self._dropped: dict[int, int] = {}  # by host that did, how often it had to encode parities anew by then
        self.fallen_rows = 0  # from a save
        self.saved: dict[int, int] = {}  # the pushes that the newest of them held then
        self.checkpointed: dict[int, int] = {}  # those that all of them held
        self._held = Layers()  # the pushes that rows hold which were not applied here
        self._attempts = count(1)
        self._wanted: dict[int, _Wanted] = {}  # by attempt
        self._refused: dict[int, StripeSet] = {}  # by host
        self._found: list[_Found] = []
        self._summed: dict[int, StripeSet] = {}  # by host, what it gave only together with another row
        self._unasked: StripeSet | None = None  # what ``unasked`` is; None: it has to be found out again
        self.arrivals = 0  # how often rows came
        self.renewals = 0  # how often rows that were asked for may have to be asked for again

    @property
    def asked(self) -> int:
        """How many questions for rows that nobody waits for are not answered."""
        return sum(each.is_block for each in self._wanted.values())

    def is_of_block(self, attempt: int) -> bool:
        """Whether a question is for rows that nobody waits for."""
        wanted = self._wanted.get(attempt)
        return wanted is not None and wanted.is_block

    @property
    def unasked(self) -> StripeSet:
        """Rows that are missing, and that a host may still give, if it is asked."""
        if self._unasked is None:
            asked = self.doomed | self._fallen
            for each in self._wanted.values():
                asked |= each.stripes
            self._unasked = self.missing - asked
        return self._unasked

    def held(self, stripes: StripeSet, applied: Vector) -> Iterator[tuple[StripeSet, Vector]]:
        """Stripes whose rows hold the same, with the pushes that they hold."""
        return ((part, joined(held, applied)) for part, held in self._held.groups(stripes))

    def holding(self, worker: int, number: int) -> StripeSet:
        """Stripes whose rows hold a push already."""
        holding = self._layout.none
        for part in self._held.holding({worker: number}):
            holding |= part
        return holding

    @property
    def is_owned(self) -> bool:
        """Whether no host has anything of other rows than these."""
        return not any(self._undropped.values())

    @property
    def drops(self) -> tuple[Drops, ...]:
        """How often hosts had to encode parities anew when they last did for these rows."""
        return tuple(Drops(self._peers.member(host), times) for host, times in self._dropped.items())

    def catch_up(self, applied: Vector) -> bool:
        """Whether nothing is missing, and no row holds more than was applied."""
        if self.missing:
            return False
        for known in (self._refused, self._summed):  # nothing is asked for any more
            known.clear()
        return self._held.forget(applied)

    # ---- asking hosts ----------------------------------------------------------------------------------------------

    def fetch(self, stripes: StripeSet) -> Iterator[Send]:
        """Ask hosts for what is missing of these and not asked for, unless blocks bring it as soon."""
        if len(self.unasked) > self._soon:
            yield from self._ask(stripes, is_block=False)

    def _ask(self, stripes: StripeSet, *, is_block: bool) -> Iterator[Send]:
        for hosts, part in self._layout.by_hosts(stripes & self.unasked).items():
            for host in hosts:
                if wanted := part - self._tried(host):
                    yield from self._want(host, hosts, wanted, is_block=is_block)
                    part -= wanted

    def advance(self) -> Iterator[Send]:
        """Ask for some rows that nobody waits for."""
        yield from self._ask(self._layout.block(self.unasked), is_block=True)

    def adopt(self, server: int) -> None:
        """Another is in a server's place: what the dead one was asked for as a host is asked again.

        So is what was found where its row is lost too. The dead one may have had that row, and changed it: what
        another host finds from now on would be the sum of other rows.
        """
        self.renewals += 1
        self._unasked = None
        self._wanted = {attempt: each for attempt, each in self._wanted.items() if each.host != server}
        self._forget_sums_with(server)
        self._drop(server, self._undropped.get(server, self._layout.none))
        self._dropped.pop(server, None)

    def _forget_sums_with(self, server: int) -> None:
        known, self._found = self._found, []
        for each in known:
            if any(other.index == server for other in each.lost):
                self._summed[each.host] -= each.stripes
            else:
                self._found.append(each)

    def given(self, host: int, given: Given) -> Iterator[Send]:
        """A host's syndrome. In most stripes nothing else is lost, and it gives the row."""
        if (wanted := self._answered(given)) is None:
            return
        if any(self._peers.is_replaced(each) for each in given.lost):
            self._unasked = None
            yield from self._ask(given.stripes, is_block=wanted.is_block)
            return
        self._held.put(given.stripes, given.held)
        syndrome = Syndrome(given.stripes, given.records)
        if len(given.lost) == 1:
            self._take(given.stripes, {host: syndrome}, given.lost)
            return
        for found in [each for each in self._found if each.lost == given.lost and each.host != host]:
            both = given.stripes & found.stripes & self.missing
            self._take(both, {found.host: found.syndrome, host: syndrome}, given.lost)
        if alone := given.stripes & self.missing:
            self._found.append(_Found(host, given.lost, syndrome, alone))
            self._summed[host] = self._summed.get(host, self._layout.none) | alone
        yield from self._try_others(wanted, given.stripes)

    def refused(self, host: int, refused: Refused) -> Iterator[Send]:
        """A host cannot give rows: another may."""
        if (wanted := self._answered(refused)) is not None:
            self._refused[host] = self._refused.get(host, self._layout.none) | refused.stripes
            yield from self._try_others(wanted, refused.stripes)

    def fall_back(self, dense: Any) -> Iterator[Send]:
        """Take the newest rows saved where no parity gives better ones.

        Nobody is given them before every host has dropped the former ones: if this server died with a host that had
        heard of it and one that had not, each would hold another row.
        """
        stripes, self.doomed = self.doomed, self._layout.none
        self._unasked = None
        if not stripes:
            return
        saved = self._records.fall_back(stripes, dense)
        self.saved = joined(self.saved, pushed(saved.newest))
        self.checkpointed = joined(self.checkpointed, pushed(saved.checkpoint))
        self._held.put(stripes, self.saved)
        self._fallen |= stripes
        self.fallen_rows += len(stripes)
        for hosts, part in self._layout.by_hosts(stripes).items():
            for host in hosts:
                self._undropped[host] = self._undropped.get(host, self._layout.none) | part
                yield Send(self._peers.member(host), Fell(part))

    def drop(self, host: int, dropped: Dropped) -> None:
        """A host has nothing more of the rows in whose place these came."""
        self._dropped[host] = dropped.times
        self._drop(host, dropped.stripes)

    def _drop(self, host: int, stripes: StripeSet) -> None:
        self._undropped[host] = self._undropped.get(host, stripes) - stripes
        there = self._fallen
        for waiting in self._undropped.values():
            there -= waiting
        self._fallen -= there
        self.missing -= there
        self.arrivals += 1

    def _want(self, host: int, hosts: Hosts, stripes: StripeSet, *, is_block: bool) -> Iterator[Send]:
        attempt = next(self._attempts)
        self._wanted[attempt] = _Wanted(host, hosts, stripes, is_block)
        self._unasked = self.unasked - stripes
        yield Send(self._peers.member(host), Want(attempt, stripes, hosts))

    def _answered(self, answer: Given | Refused) -> _Wanted | None:
        """What it answers, unless that was an older attempt."""
        if (wanted := self._wanted.get(answer.attempt)) is None:
            return None
        wanted.stripes -= answer.stripes
        if not wanted.stripes:
            del self._wanted[answer.attempt]
        return wanted

    def _take(self, stripes: StripeSet, syndromes: dict[int, Syndrome], lost: tuple[Member, ...]) -> None:
        if stripes:
            self._records.solve(stripes, syndromes, tuple(each.index for each in lost))
            self.missing -= stripes
            self._solve_no_more(stripes)
            self.arrivals += 1

    def _solve_no_more(self, stripes: StripeSet) -> None:
        """These rows are there, or lost to parity: sums that hold nothing else are let go of, with their arrays."""
        for each in self._found:
            each.stripes -= stripes
        self._found = [each for each in self._found if each.stripes]

    def _tried(self, host: int) -> StripeSet:
        """What a host cannot give, or not alone."""
        return self._refused.get(host, self._layout.none) | self._summed.get(host, self._layout.none)

    def _try_others(self, wanted: _Wanted, stripes: StripeSet) -> Iterator[Send]:
        """Go on to the next host; a row that none can give is lost to parity."""
        self._unasked = None
        stripes &= self.missing
        doomed = stripes
        for host in wanted.hosts:
            doomed &= self._tried(host)
        self.doomed |= doomed
        self._solve_no_more(doomed)
        yield from self._ask(stripes, is_block=wanted.is_block)
