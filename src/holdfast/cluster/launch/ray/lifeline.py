"""A connection that ends with the process that started a job: how processes on other machines learn of its death."""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

_HELLO_S = 1.0  # a stranger that connects and says nothing keeps nobody waiting: connections queue up meanwhile
_CONNECT_S = 30.0
_TOKEN_BYTES = 16
_BACKLOG = 1024
# A machine that is gone closes nothing: without these a connection to it would last for hours.
_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a process needs to connect."""

    host: str
    port: int
    token: bytes = field(repr=False)


class Lifeline:
    """Holds the connections of processes that were started, until it is closed or this process ends."""

    def __init__(self, host: str) -> None:
        self._listening = socket.create_server((host, 0), backlog=_BACKLOG)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="holdfast-lifeline", daemon=True)
        self._thread.start()

    @property
    def line(self) -> Line:
        """What to give to a process."""
        host, port = self._listening.getsockname()[:2]
        return Line(host=host, port=port, token=self._token)

    def close(self) -> None:
        """Let go of everyone."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread; closing alone does not
        self._thread.join()
        self._listening.close()
        for each in self._held:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return
            self._forget_the_dead()
            if _says(connection, self._token):
                self._held.append(connection)
            else:
                connection.close()

    def _forget_the_dead(self) -> None:
        """A process says its token and nothing more: what can be read is its end."""
        poller = select.poll()
        for each in self._held:
            poller.register(each, select.POLLIN)
        ended = {fd for fd, _ in poller.poll(0)}
        for each in self._held:
            if each.fileno() in ended:
                each.close()
        self._held = [each for each in self._held if each.fileno() >= 0]


def hold(line: Line) -> socket.socket:
    """Connect to whoever started this process; becomes readable when that one is gone."""
    connection = socket.create_connection((line.host, line.port), timeout=_CONNECT_S)
    connection.sendall(line.token)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return connection


def _says(connection: socket.socket, token: bytes) -> bool:
    connection.settimeout(_HELLO_S)
    said = b""
    with suppress(OSError):
        while len(said) < len(token) and (piece := connection.recv(len(token) - len(said))):
            said += piece
    return hmac.compare_digest(said, token)
