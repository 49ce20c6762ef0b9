"""One member's end of all its streams: a socket that it receives on, and one for each member that it sends to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from math import ceil, inf
from typing import cast

import zmq

from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.messages import Broken, Message
from holdfast.cluster.wire.address import Address, Peer
from holdfast.cluster.wire.frames import Framed, Introduction, Opening, Pulse, read_header, read_message
from holdfast.cluster.wire.inbox import Dropped, Inbox
from holdfast.cluster.wire.keys import Credentials
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.outbox import Outbox
from holdfast.cluster.wire.sockets import Socket, Sockets
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

# As plain numbers: operations on flags take as long as receiving.
_AT_ONCE, _EVENTS, _READABLE = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
_MOST_AT_ONCE = 1000  # messages, so that a loop comes back to its other duties
_Arrived = tuple[Member, Message]


class Endpoint:
    """Sends and receives messages; not thread-safe, and of no use in a forked process.

    What one member sends another arrives in order and without a gap, or as ``Broken``. Whoever received from a member
    can send to it: streams begin by saying where their sender is.

    Args:
        member: Who this is.
        credentials: Of the job.
        url: Where to listen: ``tcp://HOST:*`` (a free port), ``tcp://HOST:PORT`` or ``ipc://PATH``.
        is_encrypted: None: unless the address is loopback or ipc.
        admits: Whether the job has such a member; others are not listened to.
        pulse_s: How often to show the receivers of all streams that nothing is missing, as long as this end is waited
            on or received from.
        io_threads: That move bytes; one moves some GB/s.
        runtime: Clock.
    """

    def __init__(
        self,
        member: Member,
        credentials: Credentials,
        url: str,
        *,
        is_encrypted: bool | None = None,
        admits: Callable[[Member], bool] = lambda _: True,
        pulse_s: float = 1.0,
        io_threads: int = 1,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.member = member
        self.sockets = Sockets(credentials, url, is_encrypted=is_encrypted, io_threads=io_threads)
        self._runtime, self._pulse_s = runtime, pulse_s
        self._pulse_due_s = runtime.monotonic_s() + pulse_s
        try:
            self._socket, self.address = self.sockets.listening()
        except BaseException:
            self.sockets.close()
            raise
        self._inbox = Inbox(member, admits)
        self._outbox = Outbox(member, self.address, self.sockets, self._inbox.dropped)
        self._poller, self._polled = zmq.Poller(), frozenset[int]()
        self._poller.register(self._socket, zmq.POLLIN)
        self._is_closed = False

    @property
    def dropped(self) -> Dropped:
        """How many messages were dropped so far, by reason."""
        return self._inbox.dropped

    @property
    def refused(self) -> int:
        """How many connections were refused, because they did not know the job's secrets."""
        return self.sockets.refused

    @property
    def addresses(self) -> dict[Member, Address]:
        """Of the members that are known: by ``connect``, by an introduction, or because they sent something."""
        return self._outbox.addresses

    def connect(self, member: Member, address: Address) -> None:
        """Connect to a member, which learns by that where this one is."""
        self._outbox.connect(Peer(member, address))

    def reach(self, member: Member) -> None:
        """Connect to a member that was heard, before there is anything to say: what is sent to it then goes at once."""
        self._outbox.reach(member)

    def introduce(self, to: Member, members: Iterable[Member]) -> None:
        """Tell a member where others are, as far as that is known here, before whatever is sent to it next."""
        self._outbox.introduce(to, tuple(members))

    def disconnect(self, member: Member) -> None:
        """It is dead, or somebody else by now: drop what is sent to it, before and from now on.

        The same holds for earlier ones in its place.
        """
        self._outbox.drop(member)

    def disconnect_replaced(self, view: View) -> None:
        """Disconnect everyone in whose place a view has somebody else."""
        self._outbox.drop_replaced(view)

    def send(self, member: Member, message: Message) -> None:
        """Send, without ever blocking; to a member whose address is not known, once it is.

        The arrays of the message are given away: ZeroMQ reads large ones after this returns, so nobody may write to
        them any more. References to them may be dropped at once.
        """
        self.sockets.check_process()
        self._outbox.send(member, message)

    def wait(self, timeout_s: float | None, also: Sequence[int] = ()) -> list[int]:
        """Until there is something to receive, or one of these file descriptors is ready; which of them are.

        Args:
            timeout_s: At most this long; None: for any time.
            also: File descriptors to wait for as well, such as pidfds and wake-up pipes.
        """
        self._watch(frozenset(also))
        end_s = inf if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while True:
            left_s = min(end_s, self._pulse_if_due()) - self._runtime.monotonic_s()
            ready = self._poller.poll(ceil(max(0.0, left_s) * 1000))
            if ready or self._runtime.monotonic_s() >= end_s:
                return [cast(int, each) for each, _ in ready if each is not self._socket]

    def receive(self, timeout_s: float | None = 0.0) -> list[tuple[Member, Message]]:
        """All messages that are there, with their senders; if none is, waits until something arrives.

        What arrives may be nothing to hand over, so that the list can be empty before the time is up.
        Where frames of a member are missing or malformed, ``(self.member, Broken(that member))`` is among them, once:
        this end's own report. Nothing more is received from that incarnation of it.
        """
        self.sockets.check_process()
        self._pulse_if_due()
        arrived = self._drained()
        if not arrived and timeout_s != 0.0:
            self.wait(timeout_s)
            arrived = self._drained()
        return arrived

    def close(self, linger_s: float = 1.0) -> None:
        """Let what was sent get out, for this long at most; what was for the disconnected is gone already."""
        if self._is_closed:
            return
        self._is_closed = True
        self._outbox.close(linger_s)
        self._socket.close(linger=0)
        self.sockets.close()

    def _pulse_if_due(self) -> float:
        """When the next one is."""
        now_s = self._runtime.monotonic_s()
        if now_s >= self._pulse_due_s:
            self._pulse_due_s = now_s + self._pulse_s
            self._outbox.pulse()
        return self._pulse_due_s

    def _watch(self, also: frozenset[int]) -> None:
        for fd in self._polled - also:
            self._poller.unregister(fd)
        for fd in also - self._polled:
            self._poller.register(fd, zmq.POLLIN)
        self._polled = also

    def _drained(self) -> list[_Arrived]:
        arrived: list[_Arrived] = []
        socket = self._socket
        for _ in range(_MOST_AT_ONCE):
            if (
                not cast(int, socket.get(_EVENTS)) & _READABLE
            ):  # an exception of a receive that finds nothing takes far longer
                break
            socket.recv(_AT_ONCE)  # ZeroMQ's own name of the connection
            self._take(*_read(socket), arrived)
        return arrived

    def _take(self, head: bytearray, frames: list[memoryview], arrived: list[_Arrived]) -> None:
        try:
            header = read_header(head)
            sender = self._inbox.accept(header.route, header.number)
        except MalformedFrame as error:
            self._complain("a member of the job", error)
            return
        if sender is not None:
            try:
                self._hand_over(sender, read_message(header.code, head, frames), arrived)
            except MalformedFrame as error:
                self._complain(str(sender), error)
                self._inbox.condemn(header.route)
        arrived.extend((self.member, Broken(each)) for each in self._inbox.take_broken())

    def _complain(self, sender: str, error: MalformedFrame) -> None:
        """Once: only members get this far, so that it is another release, or a fault of ours."""
        self.dropped.malformed += 1
        if self.dropped.malformed == 1:
            logger.warning("%s dropped a malformed message of %s: %s", self.member, sender, error)

    def _hand_over(self, sender: Member, message: Framed, arrived: list[_Arrived]) -> None:
        match message:
            case Pulse():
                pass
            case Opening(address):
                self._outbox.learn(Peer(sender, address))
            case Introduction(peers):
                for peer in peers:
                    self._outbox.learn(peer)
            case _:
                arrived.append((sender, cast(Message, message)))


def _read(socket: Socket) -> tuple[bytearray, list[memoryview]]:
    """The rest of a message whose first frame was read: its header, and the frames of arrays."""
    frame = socket.recv(copy=False)
    head = bytearray(frame.buffer)
    frames = []
    while frame.more:
        frame = socket.recv(copy=False)
        frames.append(frame.buffer)
    return head, frames
