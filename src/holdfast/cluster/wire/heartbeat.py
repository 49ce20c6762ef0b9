"""A member's heartbeat: a thread tells the controller that this process lives, and hears the same of the controller."""

from __future__ import annotations

from contextlib import suppress

import zmq

from holdfast.cluster.core.members import CONTROLLER, Member
from holdfast.cluster.wire.address import Address
from holdfast.cluster.wire.frames import Beat, BeatAnswer, OrphanBeat, Route, read_header, read_message, write
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.socket_thread import SocketThread
from holdfast.cluster.wire.sockets import Socket, Sockets
from holdfast.runtime import SYSTEM, Runtime

_MOST_QUEUED = 4  # beats that a controller has not taken: older ones say nothing more than the next


class Heartbeat:
    """Beats from a thread with a socket of its own, however busy the process is.

    Args:
        member: Who lives.
        sockets: Of its endpoint, which is closed after this.
        address: Where the controller listens for heartbeats.
        period_s: Between two beats.
        runtime: Clock.

    Attributes:
        is_orphan: Whether the member has lost the controller. From then on that is what its beats say.
    """

    def __init__(
        self, member: Member, sockets: Sockets, address: Address, *, period_s: float, runtime: Runtime = SYSTEM
    ) -> None:
        self._period_s = period_s
        self._runtime = runtime
        self._route = Route(member, CONTROLLER).to_bytes()
        self._sent = 0
        self.is_orphan = False
        self.answered = 0  # the last beat that the controller has answered
        self.is_dismissed = False  # the controller lives, and does not count on this member any more
        socket = sockets.connected(address, most_queued=_MOST_QUEUED)
        self._thread = SocketThread(socket, self._run, name="holdfast-heartbeat")

    @property
    def controller_silent_s(self) -> float:
        """For how long beats were not answered. Time in which this process itself was stopped does not count."""
        return max(0, self._sent - self.answered - 1) * self._period_s

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _run(self, thread: SocketThread) -> None:
        while True:
            self._beat(thread.socket)
            due_s = self._runtime.monotonic_s() + self._period_s
            while (left_s := due_s - self._runtime.monotonic_s()) > 0:
                if thread.wait(left_s):
                    self._hear(bytearray(thread.socket.recv()))

    def _beat(self, socket: Socket) -> None:
        self._sent += 1
        head, _ = write(self._route, self._sent, OrphanBeat() if self.is_orphan else Beat())
        with suppress(zmq.Again):  # nobody takes them: that is the controller's silence
            socket.send(head, zmq.NOBLOCK)

    def _hear(self, head: bytearray) -> None:
        try:
            header = read_header(head)
            answer = read_message(header.code, head, ())
        except MalformedFrame:
            return
        if isinstance(answer, BeatAnswer) and self.answered < header.number <= self._sent:
            self.answered = header.number
            self.is_dismissed = not answer.is_counted_on
