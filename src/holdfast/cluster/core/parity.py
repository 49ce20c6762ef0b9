"""Parity on one server: it protects its rows by others' parities, and others' rows by its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.parity_host import ParityHost
from holdfast.cluster.core.parity_messages import (
    Absorbed,
    Agreed,
    Ask,
    Difference,
    Dropped,
    Fell,
    Forget,
    Given,
    OutOfReach,
    Rebuilt,
    Reconcile,
    Redundant,
    Refused,
    Values,
    Want,
)
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.possession import Possession
from holdfast.cluster.core.stability import Stability
from holdfast.cluster.core.stripes import Layout, Records, StripeSet
from holdfast.cluster.core.vectors import Vector


@dataclass(slots=True)
class _Unanswered:
    """A host's question for rows that are not there."""

    host: Member
    ask: Ask
    stripes: StripeSet


class Parity:
    """What a server does beside its pace, where the job has parity.

    Args:
        member: The server.
        layout: Which server has what of which stripe.
        records: Its rows, and the parities that it keeps.
        view: As of which it begins.
        applied: By worker, the last push that was applied here.
        together: Most pushes of a worker of which hosts are told in one difference.
        soon: Where no more rows are left to ask for, none is asked for by itself.
        rebuild: Whether its rows are to come from parities.
    """

    def __init__(
        self,
        member: Member,
        layout: Layout,
        records: Records,
        view: View,
        *,
        applied: Callable[[], Vector],
        together: int = 1,
        soon: int = 0,
        rebuild: bool = False,
    ) -> None:
        self._layout = layout
        self._records = records
        self._peers = Peers(view)
        self._host = ParityHost(member.index, layout, records, self._peers)
        self._rows = Possession(member.index, layout, records, self._peers, soon=soon, rebuild=rebuild)
        self._stability = Stability()
        hosts = layout.by_hosts(layout.owned(member.index))
        # Parities of all of them may hold records of this server: those that a predecessor gave, or had loaded too.
        self._listening = {host for each in hosts for host in each}
        self._has_several_hosts = any(len(each) > 1 for each in hosts)
        self._unanswered: list[_Unanswered] = []
        self._looked = 0  # how often rows had come when these were last gone through
        self._applied = applied
        self._together = together
        self._is_rebuilt = not rebuild
        self._told_doomed = 0
        self._rows_to_rebuild = len(self._rows.missing)
        self._view = view.number
        self._told_whole = 0  # the view in which it was told that all is whole, and has been since
        self.is_waited_for = False  # whether hosts are told of every push at once
        self.effects = 0  # grows when pushes become stable without a word from anybody
        records.take_changes()  # of a former life, whose differences nobody needs

    @property
    def is_rebuilt(self) -> bool:
        """Whether all rows are there, and hold what they should."""
        return self._is_rebuilt

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there, and all parities."""
        return self._is_rebuilt and self._host.is_whole

    @property
    def is_climbing(self) -> bool:
        """Whether some rows are lost to parity, and wait until it is known which."""
        return bool(self._rows.doomed)

    @property
    def asked(self) -> int:
        """How many of ``advance``'s questions are not answered."""
        return self._rows.asked + self._host.asked

    def is_of_block(self, answer: Given | Values) -> bool:
        """Whether it answers a question of ``advance``: nobody waits for that."""
        return (self._rows if isinstance(answer, Given) else self._host).is_of_block(answer.attempt)

    @property
    def has_fallen_rows(self) -> bool:
        """Whether some rows came from a save."""
        return self._rows.fallen_rows > 0

    def lost_of(self, worker: int, pushed: int) -> int:
        """How many of a worker's pushes, up to this one, rows may lack that came from a save.

        They are not sent again; nor are those that the newest of these rows hold, and others do not.
        """
        return max(pushed, self._rows.saved.get(worker, 0)) - self._rows.checkpointed.get(worker, 0)

    def lacks(self, stripes: StripeSet) -> bool:
        """Whether some of these rows are not there."""
        return bool(stripes & self._rows.missing)

    def missing_of(self, stripes: StripeSet) -> StripeSet:
        """Those of these rows that are not there."""
        return stripes & self._rows.missing

    @property
    def arrivals(self) -> int:
        """Grows when rows come."""
        return self._rows.arrivals

    def lacks_for(self, pushes: Iterable[Any]) -> bool:
        """Whether rows are not there that some of these pushes change."""
        return not self._is_rebuilt and any(self.lacks(self._records.touched(each)) for each in pushes)

    def lacks_pulled(self, rows: Any) -> bool:
        """Whether rows are not there that a pull reads."""
        return not self._is_rebuilt and self.lacks(self._records.pulled(rows))

    def fetch_for(self, gradients: Any) -> Iterator[Send]:
        """Ask for the rows that a push changes."""
        if not self._is_rebuilt:
            yield from self.fetch(self._records.touched(gradients))

    @property
    def renewals(self) -> int:
        """When it grows, rows that were fetched have to be fetched again: a host died that was asked for some."""
        return self._rows.renewals

    def fetch(self, stripes: StripeSet) -> Iterator[Send]:
        """Ask for what is missing of these rows, unless it comes as soon without."""
        return self._rows.fetch(stripes)

    def advance(self, *, both: bool = False) -> Iterator[Send]:
        """Ask for a block of what nobody waits for: rows first, then parities; or a block of ``both``.

        Then as much is asked for of one as of the other. Rows keep hosts busy, parities this server: so everyone is
        busy until the end. Questions for parities are at most as many as those for rows, which may be what those
        wait for who are asked.
        """
        sends = list(self._rows.advance())
        yield from sends
        if not sends or (both and self._are_parities_behind):
            yield from self._host.advance()

    @property
    def _are_parities_behind(self) -> bool:
        return self._host.asked < self._rows.asked and self._host.records_left >= len(self._rows.unasked)

    # ---- pushes ----------------------------------------------------------------------------------------------------

    def apply(self, worker: int, number: int, gradients: Mapping[int, Any]) -> Iterator[Send]:
        """Apply a push to the rows that do not hold it yet, and let hosts know, at once or with those that follow."""
        without = self._layout.none if self._is_rebuilt else self._rows.holding(worker, number)
        self._records.update(number, gradients, without)
        if self._stability.apply(worker, number) >= self._together or self.is_waited_for:
            yield from self.tell()

    @property
    def untold(self) -> int:
        """How many pushes were applied that hosts do not know of."""
        return self._stability.untold

    def tell(self) -> Iterator[Send]:
        """Let hosts know of all that was applied. Pushes that change the same row are one change of it."""
        if not self._stability.untold:
            return
        differences = self._records.take_changes()
        hosts = [host for host in differences if host in self._listening]
        self.effects += not hosts
        stable = self._stability.all_stable(self._applied()) if self._has_several_hosts else {}
        pushes = self._stability.tell(hosts, differences if self._has_several_hosts else {})
        for host in hosts:
            yield Send(self._peers.member(host), Difference(pushes, differences[host], stable))

    def stable(self, worker: int, applied: int) -> int:
        """The last push up to which all are in every parity that they concern."""
        return self._stability.stable(worker, applied)

    # ---- what others say -------------------------------------------------------------------------------------------

    def adopt_view(self, view: View) -> Iterator[Send]:
        """Others are there from now on."""
        self._view = view.number
        yield from self._adopt_all(each for each in view.members if each.role is Role.SERVER)

    def is_replaced(self, member: Member) -> bool:
        """Whether a newer server is known in this one's place."""
        return self._peers.is_replaced(member)

    def handle(self, sender: Member, message: Message) -> Iterator[Send]:
        """A server's message. One of a newer incarnation tells that its predecessor is dead, before any view does."""
        yield from self._adopt_all([sender])
        if self._peers.is_replaced(sender):
            return
        match message:
            case Difference():
                yield from self._host.difference(sender, message)
            case Absorbed(count):
                self._stability.absorbed(sender.index, count)
            case Ask():
                yield from self._listen(sender)
                yield from self._answer(_Unanswered(sender, message, message.stripes), is_first=True)
            case Forget(attempt):
                self._unanswered = [
                    each for each in self._unanswered if (each.host, each.ask.attempt) != (sender, attempt)
                ]
            case Values():
                yield from self._host.values(sender, message)
            case Want():
                yield from self._host.want(sender, message)
            case Given():
                yield from self._adopt_all(message.lost)
                yield from self._rows.given(sender.index, message)
                yield from self._answer_waiting()  # before a push changes these rows
            case Refused():
                yield from self._rows.refused(sender.index, message)
            case Fell():
                yield from self._host.fell(sender, message)
            case Dropped():
                self._rows.drop(sender.index, message)
            case Reconcile():
                yield from self._reconcile(sender, message)
            case Agreed(member, incarnation) if self._peers.member(member).incarnation == incarnation:
                yield from self._host.agreed(sender.index, member)

    def _listen(self, host: Member) -> Iterator[Send]:
        """A host begins to listen. A value holds what not all hosts have yet, which it must be able to tell them."""
        if host.index not in self._listening:
            self._listening.add(host.index)
            for pushes, difference in self._stability.late(host.index):
                yield Send(host, Difference(pushes, difference))

    def _reconcile(self, sender: Member, message: Reconcile) -> Iterator[Send]:
        replacement = Member(Role.SERVER, message.member, message.incarnation)
        yield from self._adopt_all([replacement])
        if not self._peers.is_replaced(replacement):
            yield from self._host.reconcile(sender, message)

    def fall_back(self, dense: Any) -> Iterator[Send]:
        """Take saved rows where no parity gives better ones; ``dense``: a worker's copy of the dense part."""
        self._told_doomed = 0
        return self._rows.fall_back(dense)

    def _adopt_all(self, members: Iterable[Member]) -> Iterator[Send]:
        for member in [each for each in members if self._peers.adopt(each)]:
            yield from self._adopt(member.index)

    def _adopt(self, index: int) -> Iterator[Send]:
        self._listening.discard(index)
        self._stability.forget(index)
        self._unanswered = [each for each in self._unanswered if each.host.index != index]
        self._rows.adopt(index)
        yield from self._host.adopt(index)

    def _answer(self, question: _Unanswered, *, is_first: bool = False) -> Iterator[Send]:
        """Give records that are there. What they hold is told with them: it may be more than was applied here."""
        here = question.stripes - self._rows.missing
        if here:
            yield from self.tell()  # a record is what the host has heard of it, by its differences before
        question.stripes -= here
        parts = list(self._rows.held(here, self._applied()))
        if is_first and not here:
            parts.append((here, {}))
        for number, (part, held) in enumerate(parts, start=1):
            records = self._records.give(part)
            yield Send(question.host, Values(question.ask.attempt, part, records, held, number < len(parts)))
        if is_first and question.stripes:
            self._unanswered.append(question)

    def _answer_waiting(self) -> Iterator[Send]:
        """Give what has come of what hosts were told is not there."""
        if self._looked == self._rows.arrivals:
            return
        self._looked = self._rows.arrivals
        for each in self._unanswered:
            yield from self._answer(each)
        self._unanswered = [each for each in self._unanswered if each.stripes]

    # ---- what follows ----------------------------------------------------------------------------------------------

    def settle(self, leader: Member) -> Iterator[Send]:
        """After every message: answer whom it allows to, and tell what is whole."""
        if not self._is_rebuilt:
            yield from self._settle_rows(leader)
        yield from self._answer_waiting()
        is_whole = self.is_whole and self._rows.is_owned
        if is_whole and self._told_whole != self._view:
            encoded, self._host.encoded = self._host.encoded, 0
            yield Send(leader, Redundant(self._view, encoded, self._host.drops, self._rows.drops))
        self._told_whole = self._view if is_whole else 0

    def _settle_rows(self, leader: Member) -> Iterator[Send]:
        if len(self._rows.doomed) > self._told_doomed and not self._rows.unasked:
            self._told_doomed = len(self._rows.doomed)  # saves are read for many rows at once
            yield Send(leader, OutOfReach(self._told_doomed))
        if self._rows.catch_up(self._applied()):
            self._is_rebuilt = True
            yield Send(leader, Rebuilt(self._rows_to_rebuild, self._rows.fallen_rows))
