"""Servers with parity that lack one of its rules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from holdfast.cluster.core.agreement import Agreement
from holdfast.cluster.core.controller import ControllerCore
from holdfast.cluster.core.layers import Layers
from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Applied, Exhausted, Message, Push, Send
from holdfast.cluster.core.outputs import Output
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_host import ParityHost
from holdfast.cluster.core.parity_messages import Fell, Given, Redundant, Retold, Values, Want
from holdfast.cluster.core.possession import Possession
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.protected import ProtectedAsynchronous, _Waiting
from holdfast.cluster.core.protected_steps import ProtectedSynchronous
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stability import Stability
from holdfast.cluster.core.stripes import Protection, StripeSet
from holdfast.cluster.core.vectors import Vector
from holdfast.cluster.core.worker import WorkerCore
from tests.cluster.core.world import Cores


def protected(**parts: type) -> Cores:
    """Servers some of whose parts are others."""

    class Server(ServerCore):
        def _protect(self, protection: Protection, view: View, *, rebuild: bool) -> Any:
            pace = super()._protect(protection, view, rebuild=rebuild)
            assert self._protected is not None
            parity: Any = self._protected[0]
            known = {"parity": parity, "pace": pace, "host": parity._host, "rows": parity._rows}
            known |= {"stability": parity._stability, "agreement": parity._host._agreement}
            for name, part in known.items():
                part.__class__ = parts.get(name, part.__class__)
            return pace

    return Cores(server=Server)


class AppliesWhatIsThere(ProtectedAsynchronous):
    """Rule 1: applies a push to the rows that are there, and to the others when they come."""

    def _queue(self, waiting: _Waiting) -> Iterator[Send]:
        missing = self._parity._rows.missing
        push, heard = waiting.message, self._workers[waiting.sender.index]
        is_next = isinstance(push, Push) and heard.progress is not None and push.number == heard.progress.pushed + 1
        if is_next and waiting.stripes & missing and not self._queues.get(waiting.sender.index):
            holding = self._parity._rows.holding
            self._parity._rows.holding = lambda *push: holding(*push) | missing  # type: ignore[method-assign]
            yield from self._apply(waiting.sender, push)  # type: ignore[arg-type]
            self._parity._rows.holding = holding  # type: ignore[method-assign]
            self._late.append((waiting, waiting.stripes & missing))
        else:
            yield from super()._queue(waiting)

    def resume(self) -> Iterator[Send]:
        for waiting, stripes in [each for each in self._late if not self._parity.lacks(each[1])]:
            self._late.remove((waiting, stripes))
            push = waiting.message
            assert isinstance(push, Push)
            worker = waiting.sender.index
            held = self._parity._rows.holding(worker, push.number)
            others = self._records.touched(push.gradients) - (stripes - held)
            yield from self._parity.tell()
            self._records.update(push.number, {worker: push.gradients}, others)
            self._parity._stability.apply(worker, push.number)
            yield from self._parity.tell()
        yield from super().resume()

    @property
    def _late(self) -> list[tuple[_Waiting, StripeSet]]:
        late: list[tuple[_Waiting, StripeSet]] = self.__dict__.setdefault("late", [])
        return late


class ForgetsTheDead(ParityHost):
    """Rule 2: forgets what it has seen of a server that died."""

    def adopt(self, member: int) -> Iterator[Send]:
        if member in self._seen:
            self._seen[member] = Layers()
        return super().adopt(member)


class TellsOnlyWhatItApplied(Possession):
    """Rule 3: says of values that they hold what was applied here."""

    def held(self, stripes: StripeSet, applied: Vector) -> Iterator[tuple[StripeSet, Vector]]:
        return iter([(stripes, applied)] if stripes else [])


class InheritsNothing(Possession):
    """Rule 3: applies again what decoded rows hold."""

    def holding(self, worker: int, number: int) -> StripeSet:
        return self._layout.none


class WaitsForViews(Parity):
    """Rule 4: hears a newer incarnation without closing the older one's stream."""

    def handle(self, sender: Member, message: Message) -> Iterator[Send]:
        incarnations = self._peers._incarnations
        known = incarnations[sender.index]
        incarnations[sender.index] = min(known, sender.incarnation)
        if sender.incarnation > known:
            incarnations[sender.index] = sender.incarnation
        sends = list(super().handle(sender, message))
        incarnations[sender.index] = known
        yield from sends


class TakesAnyAnswer(ParityHost):
    """Rule 5: takes an answer for one to whatever it last asked."""

    def values(self, sender: Member, values: Values) -> Iterator[Send]:
        if values.attempt not in self._asked and values.attempt not in self._decodes:
            for attempt, asked in self._asked.items():
                if asked.member == sender.index and asked.stripes & values.stripes:
                    return super().values(sender, replace(values, attempt=attempt))
        return super().values(sender, values)


class DecodesFromParts(ParityHost):
    """Rule 6: decodes stripes whose parity lacks others' records."""

    def want(self, asker: Member, want: Want) -> Iterator[Send]:
        return self._decode(asker, want, want.stripes)


class WaitsWithoutTheShare(ParityHost):
    """Rule 6: waits for parities that lack the dead server's record."""

    def want(self, asker: Member, want: Want) -> Iterator[Send]:
        waiting = want.stripes & self.lacks
        self._wait(asker, want, waiting)
        yield from self._decode(asker, want, want.stripes - waiting)


class WaitsForTheDead(ParityHost):
    """Rule 7: waits until all members have their rows."""

    def _conclude(self, attempt: int, decode: Any) -> Iterator[Send]:
        if not any(decode.needed.values()):
            yield from super()._conclude(attempt, decode)


class WaitsForADeadHost(Possession):
    """Rule 7: does not ask again where a host died."""

    def adopt(self, host: int) -> None:
        pass


class EncodesAnewInSilence(ParityHost):
    """Rule 7: does not refuse those who wait for a parity that is encoded anew."""

    def _refuse(self, asker: Member, want: Want, stripes: StripeSet) -> Iterator[Send]:
        if self._is_encoding:
            return iter(())
        return super()._refuse(asker, want, stripes)

    def _encode_anew(self, stripes: StripeSet) -> Iterator[Send]:
        self._is_encoding = True
        sends = list(super()._encode_anew(stripes))
        self._is_encoding = False
        return iter(sends)

    _is_encoding = False


class SkipsForSavedRows(Possession):
    """Rule 8: believes that rows from a save hold what others hold."""

    def fall_back(self, dense: Any) -> Iterator[Send]:
        doomed, before = self.doomed, list(self._held._layers)
        sends = list(super().fall_back(dense))
        if before and doomed:
            self._held.put(doomed, before[0][1])
        yield from sends


class SeesForSavedRows(ParityHost):
    """Rule 8: believes that rows from a save hold what it has seen of others."""

    def _add(self, values: Values, asked: Any) -> Iterator[Send]:
        most = max(
            (held for _, held in self._seen[asked.member]._layers), key=lambda each: sum(each.values()), default={}
        )
        held = {worker: max(most.get(worker, 0), number) for worker, number in values.held.items()}
        return super()._add(replace(values, held=held), asked)


class KeepsDeadParities(ParityHost):
    """Does not encode anew where a member has rows from a save."""

    def fell(self, sender: Member, fell: Fell) -> Iterator[Send]:
        return iter(())


class CountsUnstable(Parity):
    """Tells workers that a push is applied before hosts have it."""

    def stable(self, worker: int, applied: int) -> int:
        return applied


class GivesWhatIsUntold(Parity):
    """Gives a record that holds pushes which its host hears of later."""

    def _answer(self, question: Any, *, is_first: bool = False) -> Iterator[Send]:
        self.tell = lambda: iter(())  # type: ignore[method-assign]
        try:
            yield from list(super()._answer(question, is_first=is_first))
        finally:
            del self.tell


class CountsUntold(Stability):
    """Says that pushes are stable which no host was told of."""

    def stable(self, worker: int, applied: int) -> int:
        untold, self._untold = self._untold, {}
        found = super().stable(worker, applied)
        self._untold = untold
        return found


class WaitsForDeadHosts(Stability):
    """Waits for the acknowledgement of a host that died."""

    def forget(self, host: int) -> None:
        pass


class AbsorbsBeforeItsValue(ParityHost):
    """Takes differences into parities that lack their sender's record."""

    def difference(self, sender: Member, difference: Any) -> Iterator[Send]:
        lacking, self._lacking[sender.index] = self._lacking[sender.index], self._layout.none
        sends = list(super().difference(sender, difference))
        self._lacking[sender.index] = lacking
        yield from sends


class AccumulatesOnce(ParityHost):
    """Takes differences into the parity, and not into what it decodes with."""

    def difference(self, sender: Member, difference: Any) -> Iterator[Send]:
        decodes, self._decodes = self._decodes, {}
        sends = list(super().difference(sender, difference))
        self._decodes = decodes
        yield from sends


class GreetsAtOnce(ProtectedAsynchronous):
    """Answers a hello before everything that is applied is stable."""

    def greet(self, sender: Member, start: Progress) -> Iterator[Send]:
        sends = list(super().greet(sender, start))
        self._opens[sender.index] = 0
        yield from sends
        yield from self._tell(sender.index)


class ReportsUnstable(ProtectedAsynchronous):
    """Lets a new worker go on behind pushes that may be lost yet."""

    def close(self, worker: int) -> Progress | None:
        super().close(worker)
        return self._workers[worker].progress


class SkipsInSilence(ProtectedAsynchronous):
    """Does not answer a push that comes again."""

    def _tell(self, worker: int) -> Iterator[Send]:
        told = self._last.get(worker)
        for send in super()._tell(worker):
            if send != told:
                self._last[worker] = send
                yield send

    @property
    def _last(self) -> dict[int, Send]:
        last: dict[int, Send] = self.__dict__.setdefault("last", {})
        return last


class IsWholeTooEarly(Possession):
    """Believes that it has caught up when no row is missing."""

    def catch_up(self, applied: Vector) -> bool:
        if not self.missing:
            self._held = Layers()
        return super().catch_up(applied)


class SavesWhileItRebuilds(ControllerCore):
    """A save begins while rows are missing."""

    @property
    def is_whole(self) -> bool:
        loading, self._loading = self._loading, set()
        is_whole = super().is_whole
        self._loading = loading
        return is_whole


class SurveysWhileItRebuilds(ServerCore):
    """Answers the beginning of a save while rows are missing."""

    def _settle(self) -> Iterator[Send]:
        if self._protected is None or self._protected[0].is_rebuilt:
            yield from super()._settle()
            return
        protected, survey = self._protected, self._survey
        self._survey = None
        yield from super()._settle()
        self._protected, self._survey = None, survey
        yield from super()._settle()
        self._protected = protected


class AnswersOnce(Parity):
    """Does not give later what was absent when a host asked."""

    def _answer(self, question: Any, *, is_first: bool = False) -> Iterator[Send]:
        yield from super()._answer(question, is_first=is_first)
        self._unanswered.clear()


class BeginsWithTheFirst(ProtectedSynchronous):
    """Goes on behind the step that the first worker names."""

    @property
    def _knows_where(self) -> bool:
        for heard in self._workers.values():
            heard.progress = heard.progress or BEGINNING
        return True


class BeginsWithoutPulls(ProtectedSynchronous):
    """Does not answer pulls that came before it heard of the last worker."""

    _is_beginning = False

    def _begin(self) -> Iterator[Send]:
        self._is_beginning = True
        yield from super()._begin()
        self._is_beginning = False

    def _answer(self) -> Iterator[Send]:
        return iter(()) if self._is_beginning else super()._answer()


class LeavesPromisesToTheDead(ProtectedSynchronous):
    """Does not promise again what a predecessor promised."""

    def _promise_again(self) -> Iterator[Send]:
        return iter(())


class SettlesAtOnce(ProtectedSynchronous):
    """Says that it needs nothing more of what only workers have."""

    @property
    def is_settled(self) -> bool:
        return self._has_begun


class AnswersHellosAtOnce(ProtectedSynchronous):
    """Answers a new worker before its predecessor's last step has ended."""

    def _answer_hellos(self) -> Iterator[Send]:
        if self._has_begun:
            hellos, self._hellos = self._hellos, {}
            yield from (Send(sender, Applied(self._ended)) for sender, _ in hellos.values())


class GoesOnWithoutBoth(ControllerCore):
    """Lets the others go on where a worker and a server died within a step."""

    def _sets_everyone_back(self, dead: Member) -> bool:
        return False


class ExhaustedOnce(WorkerCore):
    """Does not tell a new server that its data have ended."""

    def _send_again(self, index: int, channel: Any) -> Iterator[Send]:
        return (send for send in super()._send_again(index, channel) if not isinstance(send.message, Exhausted))


class GivesWhatIsDisputed(Agreement):
    """Rule 9: gives rows before all hosts have the same."""

    def disputed(self, member: int) -> StripeSet:
        return self._layout.none


class KeepsNothing(Agreement):
    """Rule 9: has nothing to tell another host."""

    def keep(self, member: int, difference: Any) -> None:
        pass


class AgreesAtOnce(ParityHost):
    """Rule 9: takes what another host says for its consent."""

    def reconcile(self, other: Member, message: Any) -> Iterator[Send]:
        yield from super().reconcile(other, message)
        yield from self.agreed(other.index, message.member)


class ListensFromNowOn(Parity):
    """Gives a value that holds what other hosts do not have, and nothing else."""

    def _listen(self, host: Member) -> Iterator[Send]:
        self._listening.add(host.index)
        return iter(())


class AddsUpOtherLives(Possession):
    """Rule 9: solves for a row with what two hosts found, one before and one after the other row came and changed."""

    def _forget_sums_with(self, server: int) -> None:
        pass

    def given(self, host: int, given: Given) -> Iterator[Send]:
        lost = tuple(replace(each, incarnation=sys.maxsize) for each in given.lost)
        return super().given(host, replace(given, lost=lost))


class ChangesRowsFirst(Parity):
    """Rule 9: changes a row that came before hosts have it that were told it was lost."""

    def handle(self, sender: Member, message: Message) -> Iterator[Send]:
        if isinstance(message, Given):
            waiting, self._unanswered = self._unanswered, []
            yield from super().handle(sender, message)
            self._unanswered, self._looked = waiting, -1
        else:
            yield from super().handle(sender, message)


class BelievesEachAlone(ControllerCore):
    """Takes every server's word that its parities are whole, whatever it was told to encode anew since."""

    def _handle(self, sender: Member, message: Message) -> Iterable[Output]:
        if isinstance(message, Redundant):
            message = replace(message, dropped=())
        return super()._handle(sender, message)


class BelievesFormerViews(ControllerCore):
    """Takes a server's word that its parities are whole for all time, whoever dies after it was said."""

    def _handle(self, sender: Member, message: Message) -> Iterable[Output]:
        if isinstance(message, Redundant):
            message = replace(message, view=self.view.number)
            known = self._coverage._whole
            known.update({each: replace(said, view=self.view.number) for each, said in known.items()})
        return super()._handle(sender, message)


class EncodesNothing(ParityHost):
    """Asks for no records of parities that nobody waits for."""

    def advance(self) -> Iterator[Send]:
        return iter(())


class EncodesOnce(ParityHost):
    """Does not encode parities anew that it dropped, or that a dead host kept."""

    def advance(self) -> Iterator[Send]:
        is_first = self.drops == 0 and all(each == 1 for each in self._peers._incarnations)
        return super().advance() if is_first else iter(())


class TellsNobody(Parity):
    """Does not say that its rows and parities are whole."""

    def settle(self, leader: Member) -> Iterator[Send]:
        return (each for each in super().settle(leader) if not isinstance(each.message, Redundant))


class TellsOnce(Parity):
    """Does not say so again when another view comes."""

    def adopt_view(self, view: View) -> Iterator[Send]:
        yield from super().adopt_view(view)
        self._told_whole = view.number if self._told_whole else 0


class KeepsSums(Possession):
    """Keeps sums that it needs no more."""

    def _solve_no_more(self, stripes: StripeSet) -> None:
        pass

    def catch_up(self, applied: Vector) -> bool:
        return not self.missing and self._held.forget(applied)


class TellsOnlyOfParities(Parity):
    """Says that its parities are whole while rows of its own are missing."""

    def settle(self, leader: Member) -> Iterator[Send]:
        sends = list(super().settle(leader))
        yield from sends
        if self._host.encoded and self._host.is_whole:
            self._host.encoded = 0
            yield Send(leader, Redundant(self._view, 1, self._host.drops, ()))


class KeepsForSavedRows(Agreement):
    """Rule 8: tells other hosts of a lost row's differences as if they were those of the saved one in its place."""

    def forget(self, member: int, stripes: StripeSet) -> None:
        pass


class TellsForSavedRows(Agreement):
    """Rule 8: tells other hosts that a saved row holds what was kept of the lost one, and gives nothing of it."""

    def _retold(self, member: int, kept: Any, other: int) -> Retold:
        return replace(super()._retold(member, kept, other), stripes=self._shared[member][other])


class UsesSavedRowsAtOnce(Possession):
    """Rule 8: goes on with rows from a save while hosts may hold the former ones."""

    def fall_back(self, dense: Any) -> Iterator[Send]:
        sends = list(super().fall_back(dense))
        self.missing -= self._fallen
        self.arrivals += 1
        self._fallen = self._layout.none
        yield from sends


class CountsItsOwnSteps(ProtectedSynchronous):
    """Does not count the steps before its time for workers whose data had ended."""

    def _count_without(self) -> None:
        pass


class SpeaksWhenAsked(Parity):
    """Having loaded its rows, tells hosts of no push before they have asked for records."""

    def _listen(self, host: Member) -> Iterator[Send]:
        self._askers.add(host.index)
        return super()._listen(host)

    def tell(self) -> Iterator[Send]:
        if not self._rows_to_rebuild:
            self._listening &= self._askers
        return super().tell()

    @property
    def _askers(self) -> set[int]:
        askers: set[int] = self.__dict__.setdefault("askers", set())
        return askers
