"""A server: applies each worker's pushes whole, in order, exactly once, and answers pulls from the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cluster.core.allegiance import Allegiance
from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import (
    Broken,
    CallOff,
    End,
    Exhausted,
    GoBack,
    Held,
    Hello,
    Load,
    Loaded,
    Lost,
    Message,
    NewView,
    Pull,
    Push,
    SavePriority,
    Send,
    Settled,
    Snapshot,
    Standing,
    Survey,
    Surveyed,
)
from holdfast.cluster.core.pace import Asynchronous, Heard, Pace, Shard
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_messages import FallBack, Given, Hurry, Rebuild, Values
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.protected import ProtectedAsynchronous, ProtectedPace
from holdfast.cluster.core.protected_steps import ProtectedSynchronous
from holdfast.cluster.core.stripes import Protection
from holdfast.cluster.core.synchronous import Synchronous
from holdfast.cluster.core.vectors import Vector


class ServerCore:
    """One life of a server. ``handle`` takes what arrives, stream by stream in order, and gives what to send.

    It answers nobody before it was told what to load. Where ``next_life`` is set, its process goes on as that member,
    with a new core and the same shard. With ``protection``, parities of its rows are kept by other servers.
    """

    def __init__(
        self,
        member: Member,
        shard: Shard,
        *,
        synchronous: bool = False,
        protection: Protection | None = None,
    ) -> None:
        self.member = member
        self.ended = False
        self.next_life: Member | None = None
        self.last_save = 0  # that it heard of
        self._shard = shard
        self._is_synchronous = synchronous
        self._view: View | None = None
        self._workers: dict[int, Heard] = {}
        self._pace: Pace = Asynchronous(shard, self._workers)
        self._protection = protection
        self._protected: tuple[Parity, ProtectedPace] | None = None  # once it has loaded, where it has protection
        self._loaded: Mapping[int, Progress] = {}  # by worker, what is in the rows that were loaded
        self._checkpointed: Mapping[int, Progress] = {}  # by worker, what is in all of them
        self._behind: dict[int, int] = {}  # by worker, the push behind which it goes on where rows are rebuilt
        self._wants_dense = False
        self._is_settled = True  # nothing that a predecessor had not finished is needed from anybody
        self._told_lost: dict[int, int] = {}  # by worker, pushes that rows may lack which came from a save
        self._dense: Any = None  # a worker's copy, while it is not known whether it is needed
        self._survey: Survey | None = None  # to be answered once all rows are there
        self._is_hurried = False  # whether the controller waits for them
        self._waiting: list[tuple[Member, Message]] = []
        self._snapshot: Snapshot | None = None  # to be taken once all of it is applied
        self._allegiance = Allegiance()

    @property
    def view(self) -> View | None:
        """The newest that it knows; None while it loads, and answers nobody."""
        return self._view

    @property
    def is_orphan(self) -> bool:
        """Whether the controller is lost."""
        return self._allegiance.leader.role is not Role.CONTROLLER

    @property
    def is_adrift(self) -> bool:
        """Whether it has ended because it may have missed an order: its process stays until it is replaced."""
        return self._allegiance.is_adrift

    @property
    def is_heir(self) -> bool:
        """Whether its process is to lead a last save (see ``Leader``)."""
        return self.is_orphan and self.member.index == 0 and not self.ended

    @property
    def progress(self) -> dict[int, Progress]:
        """By worker, what its rows hold: what was applied here, or what they held when they were loaded."""
        applied = {index: heard.progress for index, heard in self._workers.items() if heard.progress is not None}
        return {**self._loaded, **applied}

    def is_replaced(self, member: Member) -> bool:
        """Whether it knows of a newer one in this one's place."""
        if member.role is Role.SERVER:
            return self._view is not None and self._view.replaces(member)
        heard = self._workers.get(member.index)
        return heard is None or member.incarnation < heard.incarnation

    def controller_lost(self) -> list[Send]:
        """Follow the heir, server 0; or be it."""
        if self._view is None or self.is_orphan:
            self.ended = self.ended or self._view is None
            return []
        early = self._allegiance.lose_controller(self._view)
        return [send for sender, message in early for send in self.handle(sender, message)]

    def handle(self, sender: Member, message: Message) -> list[Send]:
        """Take a message in."""
        if self.ended or not self._allegiance.allows(sender, message):
            return []
        return [*self._handle(sender, message), *self._settle(), *self._copy()]

    @property
    def is_whole(self) -> bool:
        """Whether it has all its rows, and all parities that it is to keep."""
        return self._protected is None or self._protected[0].is_whole

    @property
    def is_awaited(self) -> bool:
        """Whether a save waits for its rows, for which workers pause, or behind which the job ends."""
        return self._is_hurried or self._survey is not None

    @property
    def is_climbing(self) -> bool:
        """Whether some of its rows are lost to parity, and wait until it is known which."""
        return self._protected is not None and self._protected[0].is_climbing

    @property
    def asked(self) -> int:
        """How many of ``advance``'s questions are not answered."""
        return 0 if self._protected is None else self._protected[0].asked

    def is_of_block(self, answer: Given | Values) -> bool:
        """Whether it answers a question of ``advance``: nobody waits for that."""
        return self._protected is not None and self._protected[0].is_of_block(answer)

    def advance(self, *, both: bool = False) -> list[Send]:
        """Ask for a block of what parities have to give, or to be given; nothing where all is whole.

        Rows come first, as nobody is protected who has none; with ``both``, parities come at the same time.
        """
        return [] if self._protected is None or self.ended else [*self._protected[0].advance(both=both)]

    @property
    def untold(self) -> int:
        """How many pushes were applied that hosts do not know of."""
        return 0 if self._protected is None else self._protected[0].untold

    def tell(self) -> list[Send]:
        """Let hosts know of what was applied, although it may be more soon: somebody may be waiting for it."""
        if self._protected is None or self.ended:
            return []
        parity, pace = self._protected
        return [*parity.tell(), *pace.resume()]

    def _handle(self, sender: Member, message: Message) -> Iterator[Send]:
        leader = self._allegiance.leader
        match message:
            case Load():
                yield from self._load(message)
            case NewView(view):
                yield from self._adopt_view(view)
            case GoBack(member):
                self.ended, self.next_life = True, member
            case End():
                self.ended = True
            case Rebuild(view, absent):
                self._loaded = absent
                yield from self._rebuild(view)
            case FallBack():
                yield from self._fall_back()
            case Hurry():
                self._is_hurried = True
            case Survey(save, number) if self._view is not None and self._view.number == number:
                self.last_save = save
                self._survey = message
                yield from self._hurry(is_waited_for=True)
            case Snapshot():
                self._snapshot = message
            case CallOff(save):
                yield from self._hurry(is_waited_for=False)
                self._snapshot = None if self._snapshot and self._snapshot.save == save else self._snapshot
                self._shard.call_off(save)
            case SavePriority(save):
                self.last_save = save
                yield Send(leader, self._shard.copy_priority(save, self.progress))
            case Broken() if sender == self.member:  # this end's own report
                yield from self._allegiance.report(message)
                self.ended = self.is_adrift
            case _ if self._view is None:
                self._waiting.append((sender, message))
            case _ if not self.is_replaced(sender):
                yield from self._from_peer(sender, message)

    def _settle(self) -> Iterator[Send]:
        leader = self._allegiance.leader
        if self._protected is not None:
            parity, pace = self._protected
            yield from parity.settle(leader)
            if not self._is_settled and pace.is_settled:
                self._is_settled = True
                yield Send(leader, Settled())
            if not parity.is_rebuilt:
                return
        if (survey := self._survey) is not None:
            self._survey = None
            yield Send(leader, Surveyed(survey.save, self._shard.survey()))

    def _copy(self) -> Iterator[Send]:
        snapshot = self._snapshot
        if snapshot is not None and self._pace.has_applied(snapshot.progress):
            self._snapshot = None
            copied = self._shard.copy(snapshot.save, snapshot.progress, snapshot.intent)
            yield Send(self._allegiance.leader, copied)
            yield from self._hurry(is_waited_for=False)

    def _hurry(self, *, is_waited_for: bool) -> Iterator[Send]:
        """Workers that pause for a save wait until hosts have every push, so these hear of each at once."""
        if self._protected is not None:
            self._protected[0].is_waited_for = is_waited_for
            yield from self.tell() if is_waited_for else ()

    def _load(self, load: Load) -> Iterator[Send]:
        """Where all go back to a checkpoint, it is known what its rows hold; otherwise workers' hellos will tell."""
        self._view = load.view
        saved = self._shard.load(load.checkpoint)
        self._loaded, self._checkpointed = saved.newest, saved.checkpoint
        self._wants_dense = load.checkpoint is None
        for index, incarnation in enumerate(load.view.workers):
            known = None if load.checkpoint is None else load.progress.get(index, BEGINNING)
            self._workers[index] = Heard(incarnation, known)
        if load.checkpoint is not None:
            self._loaded = load.progress
        self._pace = self._make_pace(load.view)
        yield Send(self._allegiance.leader, Loaded())
        yield from self._take_waiting()

    def _rebuild(self, view: View) -> Iterator[Send]:
        """Rows come from parities. Workers' hellos tell where to go on: behind what is in all parities."""
        self._view = view
        self._workers.update({index: Heard(incarnation) for index, incarnation in enumerate(view.workers)})
        self._pace = self._make_pace(view, rebuild=True)
        yield from self._take_waiting()

    def _take_waiting(self) -> Iterator[Send]:
        waiting, self._waiting = self._waiting, []
        for sender, message in waiting:
            yield from self.handle(sender, message)

    def _fall_back(self) -> Iterator[Send]:
        """Take saved rows where parities have none, and say what they lack."""
        if self._protected is None:
            return
        parity, pace = self._protected
        yield from parity.fall_back(self._dense)
        self._dense = None
        for worker in self._behind:
            yield from self._tell_lost(worker, parity)
        yield from pace.resume()

    def _tell_lost(self, worker: int, parity: Parity) -> Iterator[Send]:
        """Once, however often rows fall back; also that it is nothing, as the controller waits for it.

        What was pushed behind its hello has changed none of the rows that were missing.
        """
        if not parity.has_fallen_rows:
            return
        lost, told = parity.lost_of(worker, self._behind[worker]), self._told_lost.get(worker, 0)
        if worker not in self._told_lost or lost > told:
            self._told_lost[worker] = lost
            yield Send(self._allegiance.leader, Lost(worker, lost - told))

    def _make_pace(self, view: View, *, rebuild: bool = False) -> Pace:
        if self._protection is not None:
            return self._protect(self._protection, view, rebuild=rebuild)
        if self._is_synchronous:
            return Synchronous(self.member, self._shard, self._workers, view)
        return Asynchronous(self._shard, self._workers)

    def _protect(self, protection: Protection, view: View, *, rebuild: bool) -> Pace:
        def applied() -> Vector:
            return pace.applied

        layout, records = protection.layout, protection.records
        parity = Parity(
            self.member,
            layout,
            records,
            view,
            applied=applied,
            together=1 if self._is_synchronous else protection.together,
            soon=protection.soon,
            rebuild=rebuild,
        )
        pace: ProtectedPace = ProtectedAsynchronous(records, self._workers, parity)
        if self._is_synchronous:
            pace = ProtectedSynchronous(self.member, records, self._workers, view, parity)
        self._protected = parity, pace
        self._is_settled = not rebuild
        return pace

    def _adopt_view(self, view: View) -> Iterator[Send]:
        """Take nothing more from whoever was replaced, and then say how far it came."""
        if view.replaces(self.member):
            self.ended = True  # even before it was told to begin
        if self.ended or self._view is None or view.number <= self._view.number:
            return
        self._view = view
        yield from self._pace.adopt(view)
        if self._protected is not None:
            parity, pace = self._protected
            parity.is_waited_for = False  # a save does not outlive a death
            yield from parity.adopt_view(view)
            yield from pace.resume()
        for index, incarnation in enumerate(view.workers):
            heard = self._workers[index]
            if incarnation > heard.incarnation:
                heard.incarnation, heard.greeted = incarnation, False
                progress = self._pace.close(index)
                yield Send(self._allegiance.leader, Standing(index, incarnation, progress, heard.stable))

    def _from_peer(self, sender: Member, message: Message) -> Iterator[Send]:
        if sender.role is not Role.WORKER:
            yield from self._from_server(sender, message)
            return
        self._workers[sender.index].incarnation = sender.incarnation  # it is believed before the view that tells of it
        match message:
            case Hello():
                yield from self._greet(sender, message)
            case Pull():
                yield from self._pace.pull(sender, message)
            case Push():
                yield from self._pace.push(sender, message)
                self._wants_dense = False
            case Exhausted():
                yield from self._pace.exhausted(sender.index)

    def _from_server(self, sender: Member, message: Message) -> Iterator[Send]:
        if self._protected is not None:
            parity, pace = self._protected
            yield from parity.handle(sender, message)
            if parity.is_replaced(sender):
                return
            yield from pace.resume()
        if isinstance(message, Held):  # reports are for an heir, which this one is not
            yield from self._pace.held(sender, message.step)

    def _greet(self, sender: Member, hello: Hello) -> Iterator[Send]:
        """A stream begins. A new server goes on from there, or from what its rows hold: none of that comes twice.

        Rows of the dense part are old where the workers' copies are not; but a copy must not undo a push.
        """
        heard = self._workers[sender.index]
        heard.greeted, heard.stable = True, hello.stable
        if self._protected is not None:
            yield from self._go_on_behind(sender.index, hello, self._protected[0])
        elif self._wants_dense and hello.dense is not None:
            self._shard.take_dense(hello.dense)
            self._wants_dense = False
        if heard.progress is None:
            held = self._loaded.get(sender.index, BEGINNING)
            heard.progress = held if held.pushed > hello.progress.pushed else hello.progress
            lost = heard.progress.pushed - self._checkpointed.get(sender.index, BEGINNING).pushed
            yield Send(self._allegiance.leader, Lost(sender.index, lost))  # the controller waits for it, were it 0
        yield from self._pace.greet(sender, hello.progress)

    def _go_on_behind(self, worker: int, hello: Hello, parity: Parity) -> Iterator[Send]:
        """Everything that a worker was told to be applied is in all parities; what rows hold beyond is skipped."""
        heard = self._workers[worker]
        if not parity.is_rebuilt and hello.dense is not None:
            self._dense = hello.dense
        if heard.progress is None:
            heard.progress = hello.progress
            self._behind[worker] = hello.progress.pushed
            yield from self._tell_lost(worker, parity)
