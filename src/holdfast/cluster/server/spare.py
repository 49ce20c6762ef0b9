"""A server without a place: it gets ready for any, and waits."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Broken, End, GoBack, Send
from holdfast.cluster.core.parity_messages import Rebuild
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.job import Job
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.link import Link
from holdfast.cluster.placement import Placement
from holdfast.cluster.server.moves import Movers
from holdfast.cluster.server.place import Place, ready_for_blocks
from holdfast.cluster.server.rebuild_pace import FAST_ASKED
from holdfast.cluster.server.room import Room

_PATIENCE_S = 0.1  # between two looks at whether the controller is still there


class Spare:
    """A process without a place, which is ready for any.

    Args:
        job: What the process was told.
        member: As whom it introduces itself.
        surroundings: Of the process.
        movers: Where rows come back fast: threads that move them.

    Attributes:
        room: Memory for any place. None: memory is scarce.
    """

    def __init__(self, job: Job, member: Member, surroundings: Surroundings, movers: Movers | None) -> None:
        self._link = Link(job, member, surroundings)
        placement = Placement(job.plan, job.servers)
        self.room = Room.for_any(
            placement, job.optimizer, job.dense_optimizer, job.saving.settings, job.rings, spares=job.spares
        )
        if self.room is not None and movers is not None:
            ready_for_blocks(job)
            _rehearse(job, self.room, movers)

    def wait_for_place(self) -> Member | None:
        """The member to be next; None: nobody needs it any more."""
        while not (self._link.is_orphaned or self._link.is_dismissed):
            for _, message in self._link.receive(_PATIENCE_S):
                match message:
                    case GoBack(member):
                        return member
                    case Broken():  # of the controller, whom alone it hears: what is missing may be its place
                        self._link.send([Send(CONTROLLER, message)])
                        self._link.await_replacement()
                    case End():
                        return None
        return None

    def leave(self) -> None:
        """Close the link, which waits for what was sent: not before the place is taken, and by another thread."""
        threading.Thread(target=self._link.close, name="holdfast-spare-link").start()


def _rehearse(job: Job, room: Room, movers: Movers) -> None:
    """Take a place, and ask for its rows, which nobody hears: what is done for the first time takes longer.

    It is given the buffer's memory, not the buffer: whoever has a place may take another one, and close what it had.
    """
    member = Member(Role.SERVER, job.rings[0].servers[0], 1)
    with closing(room.buffer.shared()) as buffer:
        place = Place(job, member.index, replace(room, buffer=buffer), movers)
        core = ServerCore(member, place.shard, protection=place.protection)
        core.handle(CONTROLLER, Rebuild(View.first(servers=job.servers, workers=1), {}))
        while core.asked < FAST_ASKED and core.advance(both=True):
            pass
