"""Parities kept for the rows of other servers: they take differences in, decode lost rows, and are encoded anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from holdfast.cluster.core.agreement import Agreement
from holdfast.cluster.core.layers import Layers
from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity_messages import (
    Absorbed,
    Agreed,
    Ask,
    Difference,
    Dropped,
    Fell,
    Forget,
    Given,
    Reconcile,
    Refused,
    Values,
    Want,
)
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.stripes import Accumulator, Layout, Records, StripeSet


@dataclass(slots=True)
class _Decode:
    """Rows of a server that lost them, under way."""

    asker: Member
    want: Want
    stripes: StripeSet  # that are not refused
    accumulator: Accumulator
    needed: dict[int, StripeSet]  # by member, what the accumulator does not hold
    awaited: set[int]  # members that have not answered
    added: set[int] = field(default_factory=set)  # members of which the accumulator holds something


@dataclass(slots=True)
class _Asked:
    """A member's records that parities lack, asked for."""

    member: int
    stripes: StripeSet
    is_block: bool  # nobody waits for these
    is_answered: bool = False  # the member does not have what is left


class ParityHost:
    """The parities of one server.

    A member's answer comes on the stream of its differences. So from the moment at which an answer is added, to a
    parity or to an accumulator, each difference that follows belongs there as well, and each that came before does not.
    """

    def __init__(self, index: int, layout: Layout, records: Records, peers: Peers) -> None:
        self._layout = layout
        self._records = records
        self._peers = peers
        self._hosted = layout.hosted(index)
        self._lacking = dict(layout.by_member(self._hosted))  # by member, the stripes whose parity lacks its record
        self._seen = {member: Layers() for member in self._lacking}  # by member, the pushes that its records held
        self._absorbed: dict[int, int] = {}  # by member, differences of the present incarnation
        self._attempts = count(1)
        self._asked: dict[int, _Asked] = {}  # by attempt
        self._unasked: dict[int, StripeSet] = {}  # by member, what is lacking and not asked for, as far as it is known
        self._decodes: dict[int, _Decode] = {}  # by attempt
        self._waiting: list[tuple[Member, Want]] = []  # for parities that lack others' records
        self._renewed: dict[int, StripeSet] = {}  # by member, the records that are of its present incarnation
        self._agreement = Agreement(index, layout, records, peers)
        self.encoded = 0  # parities, since all were whole
        self.drops = 0  # times that parities had to be encoded anew
        records.clear(self._hosted)

    @property
    def lacks(self) -> StripeSet:
        """Stripes whose parity is not whole."""
        lacking = self._layout.none
        for stripes in self._lacking.values():
            lacking |= stripes
        return lacking

    @property
    def is_whole(self) -> bool:
        """Whether every parity holds the records of all members."""
        return not any(self._lacking.values())

    @property
    def asked(self) -> int:
        """How many questions for records that parities lack, and that nobody waits for, are not answered.

        Those do not count that a member answered without having what is left: how soon that comes is not up to it.
        """
        return sum(each.is_block and not each.is_answered for each in self._asked.values())

    def is_of_block(self, attempt: int) -> bool:
        """Whether a question is for records that nobody waits for."""
        asked = self._asked.get(attempt)
        return asked is not None and asked.is_block

    @property
    def records_left(self) -> int:
        """How many records parities lack that nobody was asked for."""
        return sum(len(self._unasked_of(member)) for member, lacking in self._lacking.items() if lacking)

    def adopt(self, member: int) -> Iterator[Send]:
        """Another is in a member's place. What was seen of its predecessor stays; nothing more comes from that one."""
        self._absorbed.pop(member, None)
        self._renewed.pop(member, None)
        yield from self._agreement.adopt(member)
        self._waiting = [each for each in self._waiting if each[0].index != member]
        self._asked = {attempt: each for attempt, each in self._asked.items() if each.member != member}
        self._unasked.pop(member, None)
        yield from self._give_up(
            {attempt: each for attempt, each in self._decodes.items() if each.asker.index == member}
        )
        for attempt, decode in self._decodes.items():
            if decode.needed.get(member):
                decode.awaited.add(member)
                yield from self._ask_for(attempt, decode, member)
        yield from self._conclude_all()  # what a dead host had to agree to
        yield from self._serve_waiting()
        yield from self._complete_waiting()

    # ---- parities --------------------------------------------------------------------------------------------------

    def difference(self, sender: Member, difference: Difference) -> Iterator[Send]:
        """A member's rows have changed."""
        member = sender.index
        self._records.absorb(member, difference.records, self._lacking.get(member, self._layout.none))
        for decode in self._decodes.values():
            if member in decode.added:
                decode.accumulator.absorb(member, difference.records)
        self._seen[member].advance(difference.pushes)
        self._agreement.keep(member, difference)
        self._absorbed[member] = self._absorbed.get(member, 0) + 1
        yield Send(sender, Absorbed(self._absorbed[member]))

    def reconcile(self, other: Member, message: Reconcile) -> Iterator[Send]:
        """Another host of a dead member's stripes says what it has of it: take what is missing here."""
        member, taken = message.member, self._layout.none
        for each in message.kept:
            difference, lacked = each.difference, each.stripes - self._lacking[member]
            lacked -= self._renewed.get(member, self._layout.none)  # a predecessor's differences are not theirs
            for part in self._seen[member].holding(difference.pushes):
                lacked -= part
            self._records.absorb(member, difference.records, self._hosted - lacked)
            self._seen[member].advance_some(lacked, difference.pushes)
            taken |= lacked
        yield Send(other, Agreed(member, message.incarnation))
        yield from self._decode_anew(member, taken)

    def agreed(self, other: int, member: int) -> Iterator[Send]:
        """Another host has what is here: the member's rows can be given, whichever host dies next."""
        self._agreement.reached(member, other)
        yield from self._conclude_all()
        yield from self._serve_waiting()

    def _decode_anew(self, member: int, stripes: StripeSet) -> Iterator[Send]:
        """Parities have changed by what accumulators do not know of."""
        for attempt, decode in list(self._decodes.items()):
            if member in decode.added and decode.stripes & stripes:
                yield from self._give_up({attempt: decode})
                yield from self._decode(decode.asker, decode.want, decode.stripes)

    def advance(self) -> Iterator[Send]:
        """Ask for the records of some parities that lack them.

        Not where one is of a member that owes others: it would be asked ever more before it has anything to give.
        """
        unasked = owed = self._layout.none
        owing = {each.member for each in self._asked.values() if each.is_answered}
        for member, lacking in self._lacking.items():
            unasked |= self._unasked_of(member) if lacking else lacking
        for member in owing:
            owed |= self._unasked_of(member)
        if block := self._layout.block(unasked - owed):
            yield from self._complete(block, is_block=True)

    def _unasked_of(self, member: int) -> StripeSet:
        """The stripes whose parity lacks a member's record, which is not asked for."""
        if (found := self._unasked.get(member)) is None:
            found = self._lacking[member]
            for each in self._asked.values():
                found -= each.stripes if each.member == member else self._layout.none
            self._unasked[member] = found
        return found

    def values(self, sender: Member, values: Values) -> Iterator[Send]:
        """A member's answer; one to an older attempt is dropped."""
        if (decode := self._decodes.get(values.attempt)) is not None:
            yield from self._take_value(decode, sender.index, values)
        asked = self._asked.get(values.attempt)
        if asked is not None and asked.member == sender.index:
            asked.is_answered = not values.more
            if values.stripes:
                yield from self._add(values, asked)
            yield from self._refuse_hopeless()

    def fell(self, sender: Member, fell: Fell) -> Iterator[Send]:
        """A member has other rows than those that it had: parities that hold the lost ones are encoded anew."""
        self._agreement.forget(sender.index, fell.stripes)
        yield from self._encode_anew(fell.stripes - self._lacking[sender.index])
        yield Send(sender, Dropped(fell.stripes, self.drops))

    def _add(self, values: Values, asked: _Asked) -> Iterator[Send]:
        member = asked.member
        self._records.add(member, values.stripes, values.records)
        self._lacking[member] -= values.stripes
        asked.stripes -= values.stripes
        if not asked.stripes:
            del self._asked[values.attempt]
        self._seen[member].put(values.stripes, values.held)
        self._renewed[member] = self._renewed.get(member, self._layout.none) | values.stripes
        self.encoded += len(self._whole_of(values.stripes))
        yield from self._serve_waiting()

    def _whole_of(self, stripes: StripeSet) -> StripeSet:
        """Of these stripes, those whose parity lacks nothing."""
        for lacking in self._lacking.values():
            if not stripes:
                break
            stripes -= lacking
        return stripes

    def _encode_anew(self, stripes: StripeSet) -> Iterator[Send]:
        """Drop what these parities hold, and refuse all who wait for them.

        What they lacked and was asked for they lack now too: the answers are as good for them as before.
        """
        if not stripes:
            return
        for decode in self._decodes.values():
            yield from self._refuse(decode.asker, decode.want, decode.stripes & stripes)
            decode.stripes -= stripes
        yield from self._give_up({attempt: each for attempt, each in self._decodes.items() if not each.stripes})
        waiting, self._waiting = self._waiting, []
        for asker, want in waiting:
            yield from self._refuse(asker, want, want.stripes & stripes)
            self._wait(asker, want, want.stripes - stripes)
        for member, theirs in self._layout.by_member(stripes).items():
            self._lacking[member] |= theirs
        self._unasked.clear()
        self._records.clear(stripes)
        self.drops += 1

    def _complete(self, stripes: StripeSet, *, is_block: bool) -> Iterator[Send]:
        """Ask members for what the parities of these stripes lack, unless they are asked."""
        for hosts, part in self._layout.by_hosts(stripes).items():
            for member, theirs in self._layout.by_member(part).items():
                if lacking := theirs & self._unasked_of(member):
                    attempt = next(self._attempts)
                    self._asked[attempt] = _Asked(member, lacking, is_block)
                    self._unasked[member] -= lacking
                    yield Send(self._peers.member(member), Ask(attempt, lacking, hosts))

    # ---- lost rows -------------------------------------------------------------------------------------------------

    def want(self, asker: Member, want: Want) -> Iterator[Send]:
        """Decode what can be; wait for parities that hold the lost record and lack others; refuse the rest."""
        refused = want.stripes & self._lacking[asker.index]
        waiting = (want.stripes - refused) & (self.lacks | self._agreement.disputed(asker.index))
        yield from self._refuse(asker, want, refused)
        self._wait(asker, want, waiting)
        yield from self._complete(waiting, is_block=False)
        yield from self._refuse_hopeless()
        yield from self._decode(asker, want, want.stripes - refused - waiting)

    def _wait(self, asker: Member, want: Want, stripes: StripeSet) -> None:
        if stripes:
            self._waiting.append((asker, Want(want.attempt, stripes, want.hosts)))

    def _refuse_hopeless(self) -> Iterator[Send]:
        """Where a stripe has several hosts, a member without its row may wait for another host, and that for this."""
        if not self._waiting:
            return
        absent = self._layout.none
        for asked in self._asked.values():
            absent |= asked.stripes if asked.is_answered else self._layout.none
        waiting, self._waiting = self._waiting, []
        for asker, want in waiting:
            hopeless = want.stripes & absent if len(want.hosts) > 1 else self._layout.none
            yield from self._refuse(asker, want, hopeless)
            self._wait(asker, want, want.stripes - hopeless)

    def _complete_waiting(self) -> Iterator[Send]:
        """A dead member was asked: what somebody waits for is asked for again at once, not when blocks get there."""
        for _, want in self._waiting:
            yield from self._complete(want.stripes, is_block=False)

    def _serve_waiting(self) -> Iterator[Send]:
        waiting, self._waiting = self._waiting, []
        lacks = self.lacks if waiting else self._layout.none
        for asker, want in waiting:
            lacking = want.stripes & (lacks | self._agreement.disputed(asker.index))
            self._wait(asker, want, lacking)
            yield from self._decode(asker, want, want.stripes - lacking)

    def _decode(self, asker: Member, want: Want, stripes: StripeSet) -> Iterator[Send]:
        if not stripes:
            return
        others = {each: part for each, part in self._layout.by_member(stripes).items() if each != asker.index}
        decode = _Decode(asker, want, stripes, self._records.accumulator(stripes), others, set(others))
        attempt = next(self._attempts)
        self._decodes[attempt] = decode
        for member in others:
            yield from self._ask_for(attempt, decode, member)
        yield from self._conclude(attempt, decode)

    def _ask_for(self, attempt: int, decode: _Decode, member: int) -> Iterator[Send]:
        yield Send(self._peers.member(member), Ask(attempt, decode.needed[member], decode.want.hosts))

    def _take_value(self, decode: _Decode, member: int, values: Values) -> Iterator[Send]:
        """A first answer, or what was absent in it."""
        if values.stripes:
            decode.accumulator.add(member, values.stripes, values.records)
            decode.added.add(member)
            decode.needed[member] -= values.stripes
        if not values.more:
            decode.awaited.discard(member)
        yield from self._conclude(values.attempt, decode)

    def _conclude(self, attempt: int, decode: _Decode) -> Iterator[Send]:
        """When all have answered, only the rows of the dead are left in the syndrome, whatever has happened since."""
        missing = [member for member, absent in decode.needed.items() if absent]
        if decode.awaited or any(self._agreement.disputed(member) & decode.stripes for member in missing):
            return
        yield from self._give_up({attempt: decode})
        rest: list[tuple[StripeSet, tuple[Member, ...]]] = [(decode.stripes, (decode.asker,))]
        for member, absent in sorted(decode.needed.items()):
            split = [(part & absent, (*lost, self._peers.member(member))) for part, lost in rest]
            rest = [(part, lost) for part, lost in [*((part - absent, lost) for part, lost in rest), *split] if part]
        for part, lost in rest:
            if len(lost) > len(decode.want.hosts):
                yield from self._refuse(decode.asker, decode.want, part)
            else:
                for alike, held in self._seen[decode.asker.index].groups(part):
                    syndrome = decode.accumulator.syndrome(alike)
                    yield Send(decode.asker, Given(decode.want.attempt, alike, syndrome, lost, held))

    def _give_up(self, decodes: Mapping[int, _Decode]) -> Iterator[Send]:
        """These are over. A member that did not have what it was asked for keeps it no longer in mind."""
        for attempt, decode in decodes.items():
            del self._decodes[attempt]
            for member in (each for each, absent in decode.needed.items() if absent):
                yield Send(self._peers.member(member), Forget(attempt))

    def _conclude_all(self) -> Iterator[Send]:
        for attempt, decode in list(self._decodes.items()):
            yield from self._conclude(attempt, decode)

    def _refuse(self, asker: Member, want: Want, stripes: StripeSet) -> Iterator[Send]:
        if stripes:
            yield Send(asker, Refused(want.attempt, stripes))
