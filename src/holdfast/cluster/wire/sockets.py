"""The sockets of a process, set up as streams need them."""

from __future__ import annotations

import ipaddress
import os
import socket as system
from typing import TypeAlias, cast

import zmq

from holdfast.cluster.wire.address import Address
from holdfast.cluster.wire.guard import Guard, present
from holdfast.cluster.wire.keys import Credentials
from holdfast.cluster.wire.sheet import MOST_FRAME_BYTES
from holdfast.errors import ConfigurationError

Socket: TypeAlias = zmq.Socket[bytes]

_ZERO_COPY_BYTES = 1 << 18  # below this a copy costs less than ZeroMQ's word that a buffer is free (design note 009)
_HANDSHAKE_MS = 10_000
_RECONNECT_MS, _MOST_RECONNECT_MS = 20, 500


class Sockets:
    """Makes a process's sockets, all of which accept and present the credentials of one job.

    Args:
        credentials: Of the job.
        url: Where to bind: ``tcp://HOST:*`` (a free port), ``tcp://HOST:PORT`` or ``ipc://PATH``.
        is_encrypted: None: unless the address is loopback or ipc.
        io_threads: That move bytes; one moves some GB/s.
    """

    def __init__(
        self, credentials: Credentials, url: str, *, is_encrypted: bool | None = None, io_threads: int = 1
    ) -> None:
        self._url, is_local = _resolved(url)
        self._credentials = credentials
        self._process = os.getpid()
        self._context: zmq.Context[Socket] = zmq.Context(io_threads)
        self._io_threads = io_threads
        self._guard = Guard(
            self._context, credentials, is_encrypted=not is_local if is_encrypted is None else is_encrypted
        )
        self._bound = 0

    @property
    def refused(self) -> int:
        """Connections of strangers."""
        return self._guard.refused

    def check_process(self) -> None:
        """A forked context is dead without an error."""
        if os.getpid() != self._process:
            raise ConfigurationError("sockets do not survive a fork; start processes by spawn and connect in each")

    def listening(self, *, most_queued: int = 0) -> tuple[Socket, Address]:
        """A ROUTER that members can connect to; ``most_queued`` messages to each are kept (0: all).

        It listens for each thread that moves bytes, and whoever connects says by that which of them gets the
        connection. Left to itself, ZeroMQ gives it to the thread that has the fewest, but counts one only once the
        thread has begun with it: of members that connect at the same time, one thread may get all.
        """
        socket = self._made(zmq.ROUTER, self._url, most_queued)
        self._guard.protect(socket)
        url, *others = [self._bind(socket, thread) for thread in range(self._io_threads)]
        return socket, Address(
            url=url, other_urls=tuple(others), key=self._guard.key, is_encrypted=self._guard.is_encrypted
        )

    def connected(self, address: Address, *, turn: int = 0, thread: int = 0, most_queued: int = 0) -> Socket:
        """A DEALER to an address. It has no name of its own, so that no connection is taken for another's.

        Args:
            address: Of whom.
            turn: Of this member among those that connect there: it decides which thread there moves bytes.
            thread: Which thread moves them here. There may be fewer; then they take turns.
            most_queued: Messages that are kept; 0: all.
        """
        url = address.way_in(turn)
        socket = self._made(zmq.DEALER, url, most_queued)
        socket.affinity = 1 << thread % self._io_threads
        present(socket, self._credentials, address.key, is_encrypted=address.is_encrypted)
        socket.connect(url)
        return socket

    def close(self) -> None:
        """Wait for what the lingering of closed sockets allows, and end; threads that use its sockets end too."""
        self._context.term()
        self._guard.join()

    def _made(self, kind: int, url: str, most_queued: int) -> Socket:
        socket: Socket = self._context.socket(kind)
        socket.sndhwm = most_queued  # a high-water mark drops messages; credits bound what is on its way
        socket.rcvhwm = 0
        socket.linger = 0
        socket.ipv6 = "[" in url
        socket.maxmsgsize = MOST_FRAME_BYTES
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _MOST_RECONNECT_MS
        socket.copy_threshold = _ZERO_COPY_BYTES
        return socket

    def _next_url(self) -> str:
        """First the port or path that was asked for; then other ports, or paths beside it."""
        self._bound += 1
        if self._bound == 1:
            return self._url
        return f"{self._url}.{self._bound}" if self._url.startswith("ipc:") else self._url.rpartition(":")[0] + ":*"

    def _bind(self, socket: Socket, thread: int) -> str:
        """Listen once more, and let a thread have what connects there; where that is."""
        url = self._next_url()
        socket.affinity = 1 << thread
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            socket.close()
            raise ConfigurationError(f"cannot listen on {url}: {error}; choose a free port (tcp://HOST:*)") from None
        return cast(bytes, socket.last_endpoint).rstrip(b"\0").decode()


def _resolved(url: str) -> tuple[str, bool]:
    """With an address in place of a name; and whether only this machine can reach it."""
    scheme, _, rest = url.partition("://")
    if scheme == "ipc" and rest:
        return url, True
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not port:
        raise ConfigurationError(f"{url!r} is no address to listen on; pass tcp://HOST:* or ipc://PATH")
    address = _looked_up(host.strip("[]"))
    if address.is_unspecified:
        raise ConfigurationError(f"{url!r} is every address of this machine; pass the one that the others reach")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"tcp://{shown}:{port}", address.is_loopback


def _looked_up(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(system.gethostbyname(host))
    except OSError as error:
        raise ConfigurationError(f"no machine is called {host!r}: {error}") from None
