"""The process of a server: lets messages in, hands them to its state machine, and sends what that answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing

import numpy as np

from holdfast.checkpoint import shards
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    CallOff,
    Copied,
    End,
    Failed,
    Load,
    Message,
    NewView,
    SavePriority,
    Send,
    Snapshot,
)
from holdfast.cluster.core.notes import (
    Account,
    Decide,
    Decided,
    DensePart,
    NamedCheckpoint,
    Outcome,
    Stats,
)
from holdfast.cluster.core.parity_messages import Given, Rebuild, Rebuilt, Redundant, Values
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.heap import keep_freed_memory
from holdfast.cluster.job import Job
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.link import Link, can_read_beside, compute_threads
from holdfast.cluster.save_account import SaveAccount
from holdfast.cluster.server.arrivals import Arrivals
from holdfast.cluster.server.departures import Departures
from holdfast.cluster.server.heir import Heir
from holdfast.cluster.server.moves import Movers
from holdfast.cluster.server.place import Place, ready_for_blocks
from holdfast.cluster.server.protected_shard import ProtectedShard
from holdfast.cluster.server.rebuild_pace import RebuildPace
from holdfast.cluster.server.room import Room
from holdfast.cluster.server.spare import Spare
from holdfast.cluster.server.telling import Telling
from holdfast.errors import HoldfastError
from holdfast.kernels import galois, optimize, parts, records, row_index, run_sets, start
from holdfast.runtime import SYSTEM

_PATIENCE_S = 0.1  # where none comes, and between two looks at whether the controller is still there
_LOOK_S = 0.02  # between two looks at what the agent did, where messages keep coming
_STATS_S = 1.0


def run(payload: bytes, surroundings: Surroundings) -> None:
    """Be a server, or a spare that waits to become one, until told to end."""
    keep_freed_memory(one_heap=True)
    job, member = Job.unpack(payload)
    _warm_up(job)
    movers: Movers | None = None
    if job.rings and job.pacing.is_rebuilt_fast:
        movers = Movers.started(may_read=can_read_beside(job.together))
    parts.start_threads(compute_threads(job.together))
    spare = Spare(job, member, surroundings, movers) if member.index >= job.servers else None
    try:
        next_life = member if spare is None else spare.wait_for_place()
        if next_life is None:
            return
        link = Link(job, next_life, surroundings)  # the controller answers while the place is made
        place = _made_place(job, next_life.index, link, None if spare is None else spare.room, movers)
    finally:
        if spare is not None:
            spare.leave()
    try:
        while (next_life := _Life(job, link.member, link, place).live()) is not None:
            link = Link(job, next_life, surroundings)
    finally:
        place.close()


def _warm_up(job: Job) -> None:
    """Load what is compiled, and what is imported with its first use."""
    optimize.warm_up()
    start.warm_up()
    shards.warm_up()
    if job.rings:
        galois.warm_up()
        records.warm_up()
        row_index.warm_up()
        run_sets.warm_up()
    np.unique(np.empty(0, np.int64))  # NumPy imports a part of itself with the first one, which takes 10 ms


def _made_place(job: Job, index: int, link: Link, room: Room | None, movers: Movers | None) -> Place:
    try:
        place = Place(job, index, room, movers)
        if room is None and movers is not None:
            ready_for_blocks(job)  # behind rows and parities, which would take what was made ready
    except BaseException:
        link.close()
        raise
    return place


class _Life:
    """As one member."""

    def __init__(self, job: Job, member: Member, link: Link, place: Place) -> None:
        self._synchronous = job.pacing.synchronous
        self._link = link
        self._departures = Departures(link.send)
        self._place = place
        self._core = ServerCore(member, place.shard, synchronous=self._synchronous, protection=place.protection)
        self._rebuild_pace = RebuildPace(job.pacing.is_rebuilt_fast)
        self._arrivals = Arrivals(lambda patience_s: link.receive(patience_s, (self._departures.fd,)))
        self._telling = Telling()
        self._owes_saves = False  # whether rows were rebuilt, of which saves do not know
        self._heir: Heir | None = None
        self._snapshot: tuple[Member, Snapshot] | None = None  # that waits for the other servers' dense parts
        self._looked_s = self._told_s = 0.0
        self._servers: tuple[int, ...] = ()  # incarnations, of the newest view
        place.shard.replaces = member.incarnation > 1

    def live(self) -> Member | None:
        """Until the end; who to be next, or None."""
        try:
            while not (self._core.ended or self._link.is_dismissed or self._link.is_forsaken):
                for sender, message in self._arrivals.next(self._patience_s):
                    self._take(sender, message)
                if self._telling.is_due(self._core.untold):
                    self._send(self._core.tell())
                self._rebuild()
                self._departures.release()
                if self._core.is_whole:
                    self._save_rebuilt()
                self._look_around()
            if self._core.is_adrift:
                self._link.await_replacement()
            return self._core.next_life
        except HoldfastError as error:  # another process in this place would come to the same
            self._fail(error)
            return None
        finally:
            with closing(self._link):
                self._departures.close()

    @property
    def _patience_s(self) -> float:
        most_s = _PATIENCE_S if self._core.is_whole else self._rebuild_pace.patience_s(_PATIENCE_S, self._core.asked)
        return self._telling.patience_s(most_s)

    def _rebuild(self) -> None:
        """Ask for what parities give, or lack, and nobody waits for."""
        self._rebuild_pace.is_urgent = self._core.is_climbing or self._core.is_awaited
        while not self._core.is_whole and self._rebuild_pace.may_ask(self._core.asked):
            sends = self._core.advance(both=self._rebuild_pace.is_fast)
            self._rebuild_pace.has_asked_all = not sends
            if not sends:
                return
            self._send(sends)

    def _fail(self, error: HoldfastError) -> None:
        """Tell the controller that this cannot go on, and wait until it ends the job."""
        self._link.send([Send(CONTROLLER, Failed(f"{type(error).__name__}: {error}"))])
        while not (self._link.is_orphaned or self._link.is_dismissed):
            if any(isinstance(message, End) for _, message in self._link.receive(_PATIENCE_S)):
                return

    def _save_rebuilt(self) -> None:
        """Let saves go on with rebuilt rows. This starts a process: parities that are still to come are not kept up."""
        if self._owes_saves and isinstance(self._place.shard, ProtectedShard):
            self._owes_saves = False
            self._place.shard.rebuilt()

    def _take(self, sender: Member, message: Message) -> None:
        if sender.role is Role.CONTROLLER:  # who says when to save
            self._save_rebuilt()
        match message:
            case NamedCheckpoint(save, checkpoint):
                self._place.shard.names[save] = checkpoint
            case Decide():
                self._departures.send([Send(sender, self._place.saves.decide(message))])
            case Decided(_, intent, _):
                self._place.saves.priority_intent = intent
            case Account(report):
                self._place.saves.account = SaveAccount.from_json(report)
            case DensePart():
                self._gather(sender, message)
            case Snapshot() if self._core.member.index == 0:
                self._snapshot = (sender, message)
                self._copy_if_gathered()
            case Given() | Values() if self._core.is_of_block(message):
                began_s = SYSTEM.monotonic_s()
                self._hand_on(sender, message)
                self._rebuild_pace.worked(SYSTEM.monotonic_s() - began_s)
            case _ if self._heir is not None and self._heir.concerns(message):
                self._send(self._heir.handle(sender, message))
            case _:
                self._hand_on(sender, message)
        if isinstance(message, NewView | Load | Rebuild):
            self._link.adopt(message.view)
            self._notice_servers(message.view)
        if isinstance(message, Rebuild):
            self._rebuild()  # before it looks at what workers send meanwhile

    def _notice_servers(self, view: View) -> None:
        before, self._servers = self._servers, max(self._servers, view.servers)
        if before and before != self._servers:
            self._place.saves.call_off_priority()

    def _hand_on(self, sender: Member, message: Message) -> None:
        if isinstance(message, CallOff):
            self._snapshot = None
        sends = self._core.handle(sender, message)
        if any(isinstance(each.message, Rebuilt | Redundant) for each in sends):
            self._wait_for_moves()  # it is told when it is so
            self._owes_saves = self._owes_saves or any(isinstance(each.message, Rebuilt) for each in sends)
            if self._core.is_orphan:
                self._save_rebuilt()
        view, copied = self._core.view, [each.message for each in sends if isinstance(each.message, Copied)]
        if copied and view is not None and self._core.member.index != 0 and not isinstance(message, SavePriority):
            part = DensePart(copied[0].save, self._place.dense.own)
            self._send([Send(view.member(Role.SERVER, 0), part)])
        self._send(sends)

    def _wait_for_moves(self) -> None:
        if isinstance(self._place.shard, ProtectedShard):
            self._place.shard.wait()

    def _send(self, sends: Iterable[Send]) -> None:
        """What an heir tells its own server, and what that answers, never leaves the process."""
        for each in sends:
            if each.to == self._core.member:
                self._take(each.to, each.message)
            else:
                self._departures.send([each])

    def _gather(self, sender: Member, part: DensePart) -> None:
        self._place.dense.take(part.save, sender.index, part.dense)
        self._copy_if_gathered()

    def _copy_if_gathered(self) -> None:
        if self._snapshot is not None and self._place.dense.is_whole(self._snapshot[1].save):
            (sender, snapshot), self._snapshot = self._snapshot, None
            self._hand_on(sender, snapshot)

    def _look_around(self) -> None:
        now_s = SYSTEM.monotonic_s()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._settle(self._place.saves.outcomes())
        if now_s - self._told_s >= _STATS_S:
            self._told_s = now_s
            self._link.send([Send(CONTROLLER, Stats(self._stats()))])
        if self._link.is_orphaned and not self._core.is_orphan:
            self._inherit()

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.checkpoint and not outcome.problem:
                self._place.shard.names[outcome.save] = outcome.checkpoint
            if self._heir is not None:
                self._send(self._heir.settle(outcome))
            elif self._core.member.index == 0:
                self._link.send([Send(CONTROLLER, outcome)])

    def _inherit(self) -> None:
        """The controller is gone: follow its heir, or be it."""
        self._save_rebuilt()
        self._send(self._core.controller_lost())
        view = self._core.view
        if not self._core.ended and view is not None and view.member(Role.SERVER, 0) == self._core.member:
            self._heir = Heir(
                view,
                self._place.saves,
                synchronous=self._synchronous,
                last_save=self._core.last_save,
                progress=self._core.progress,
            )
            self._send(self._heir.begin())

    def _stats(self) -> bytes:
        shard = self._place.shard
        return json.dumps({"pulled_rows": shard.pulled_rows, "pushed_rows": shard.pushed_rows}).encode()
