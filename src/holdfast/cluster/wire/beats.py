"""The controller's side of heartbeats: a thread that answers them and keeps who was heard when."""

from __future__ import annotations

import threading

import zmq

from holdfast.cluster.core.liveness import Liveness
from holdfast.cluster.core.members import CONTROLLER, Member
from holdfast.cluster.wire.frames import Beat, BeatAnswer, OrphanBeat, Route, read_header, read_message, write
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.socket_thread import SocketThread
from holdfast.cluster.wire.sockets import Socket, Sockets
from holdfast.runtime import SYSTEM, Runtime

_MOST_QUEUED = 16  # answers to a member that is stopped
_TICKS = 8  # within the timeout


class Beats:
    """Collects the heartbeats of members that are watched; answers all, and tells those that are not.

    Args:
        sockets: Of the controller's endpoint, which is closed after this.
        timeout_s: A member that is silent for longer is overdue.
        runtime: Clock.
    """

    def __init__(self, sockets: Sockets, *, timeout_s: float, runtime: Runtime = SYSTEM) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._liveness = Liveness(timeout_s=timeout_s)
        self._lock = threading.Lock()
        socket, self.address = sockets.listening(most_queued=_MOST_QUEUED)
        self._thread = SocketThread(socket, self._run, name="holdfast-beats")

    def watch(self, member: Member, *, grace_s: float = 0.0) -> None:
        """Count on a member from now on; while it starts, it may be silent for ``grace_s`` longer."""
        with self._lock:
            self._liveness.watch(member, self._runtime.monotonic_s(), grace_s=grace_s)

    def goes_on(self, member: Member, next_life: Member, *, grace_s: float = 0.0) -> None:
        """A member was told to go on as somebody else: count on that one, and do not dismiss it before it has heard."""
        with self._lock:
            self._liveness.goes_on(member, next_life, self._runtime.monotonic_s(), grace_s=grace_s)

    def forget(self, member: Member) -> None:
        """It is dead or replaced; if it lives, its next beat is answered with that."""
        with self._lock:
            self._liveness.forget(member)

    def heard(self, member: Member) -> bool:
        """Whether a member that is watched has beaten since then."""
        with self._lock:
            return self._liveness.was_heard(member)

    def overdue(self) -> list[Member]:
        """Members that were silent for too long and are not forgotten."""
        with self._lock:
            now_s = self._runtime.monotonic_s()
            self._liveness.tick(now_s)
            return self._liveness.overdue(now_s)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _run(self, thread: SocketThread) -> None:
        while True:
            has_message = thread.wait(self._timeout_s / _TICKS)
            with self._lock:
                self._liveness.tick(self._runtime.monotonic_s())
            if has_message:
                self._answer(thread.socket, *thread.socket.recv_multipart())

    def _answer(self, socket: Socket, connection: bytes, head: bytes, *more: bytes) -> None:
        try:
            header = read_header(head)
            sender = Route.from_bytes(header.route).sender
            beat = read_message(header.code, bytearray(head), ())
        except MalformedFrame:
            return
        if isinstance(beat, Beat | OrphanBeat) and not more:
            is_counted_on = self._hear(sender, is_orphan=isinstance(beat, OrphanBeat))
            answer, _ = write(Route(CONTROLLER, sender).to_bytes(), header.number, BeatAnswer(is_counted_on))
            socket.send_multipart([connection, answer], zmq.NOBLOCK)

    def _hear(self, sender: Member, *, is_orphan: bool) -> bool:
        """Whether it is counted on. An orphan becomes overdue, and is replaced: it would follow no order."""
        with self._lock:
            if is_orphan:
                return self._liveness.counts_on(sender)
            return self._liveness.heard(sender, self._runtime.monotonic_s())
