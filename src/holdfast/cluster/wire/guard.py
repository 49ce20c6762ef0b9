"""Decides who may connect, before a single frame of theirs is read."""

from __future__ import annotations

import hmac
import secrets
import threading
from contextlib import suppress

import zmq
from zmq.utils import z85

from holdfast.cluster.wire.keys import Credentials

_ASK = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may connect
_DOMAIN = b"holdfast"
_USER = b"member"
_PASSES = (b"200", b"OK", _USER)
_REFUSED = (b"400", b"", b"")


class Guard:
    """Lets the members of a job in, and nobody else.

    ZeroMQ asks for each connection during its handshake, and a thread answers: a stranger never gets a frame into the
    queue of a socket, which nothing else bounds. Once connected, a peer is not asked about again.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], credentials: Credentials, *, is_encrypted: bool
    ) -> None:
        self._credentials = credentials
        self._secret_key = b""
        self.is_encrypted = is_encrypted
        self.key = secrets.token_bytes(32)
        if is_encrypted:
            public_key, self._secret_key = zmq.curve_keypair()
            self.key = z85.decode(public_key)
        self.refused = 0  # connections
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ASK)  # before anything else is bound: without an answer, ZeroMQ lets everyone in
        self._thread = threading.Thread(target=self._answer, name="holdfast-guard", daemon=True)
        self._thread.start()

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Set a socket up that is about to be bound."""
        socket.zap_domain = _DOMAIN
        if self.is_encrypted:
            socket.curve_server = True
            socket.curve_secretkey = self._secret_key
        else:
            socket.plain_server = True

    def join(self) -> None:
        """Once its context is terminated."""
        self._thread.join()

    def _answer(self) -> None:
        with suppress(zmq.ContextTerminated):
            while True:
                _, request, _, _, _, mechanism, *shown = self._socket.recv_multipart()
                passes = self._passes(mechanism, shown)
                self.refused += not passes
                self._socket.send_multipart([b"1.0", request, *(_PASSES if passes else _REFUSED), b""])
        self._socket.close()

    def _passes(self, mechanism: bytes, shown: list[bytes]) -> bool:
        if mechanism == b"CURVE" and self.is_encrypted:
            return hmac.compare_digest(shown[0], z85.decode(self._credentials.public_key))
        if mechanism == b"PLAIN" and not self.is_encrypted:
            return hmac.compare_digest(shown[1], self._credentials.password(self.key))
        return False


def present(socket: zmq.Socket[bytes], credentials: Credentials, key: bytes, *, is_encrypted: bool) -> None:
    """Set a socket up that is about to connect to the address with this key."""
    if is_encrypted:
        socket.curve_serverkey = z85.encode(key)
        socket.curve_publickey = credentials.public_key
        socket.curve_secretkey = credentials.secret_key
    else:
        socket.plain_username = _USER
        socket.plain_password = credentials.password(key)
