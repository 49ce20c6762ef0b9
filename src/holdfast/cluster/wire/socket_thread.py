"""A thread with a socket of its own: what must go on however busy the process is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from math import ceil

import zmq

from holdfast.cluster.wire.sockets import Socket


class Stopped(Exception):
    """The thread is to end."""


class SocketThread:
    """Runs until it is closed, or until the socket's context is.

    Args:
        socket: Used by the thread alone from now on, and closed by it.
        run: What the thread does; ends with what ``wait`` raises.
        name: Of the thread.
    """

    def __init__(self, socket: Socket, run: Callable[[SocketThread], None], *, name: str) -> None:
        self.socket = socket
        self._run = run
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._stop, zmq.POLLIN)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """For the thread itself: whether there is something to receive within this time. Raises Stopped."""
        ready = dict(self._poller.poll(ceil(timeout_s * 1000)))
        if self._stop in ready:
            raise Stopped
        return self.socket in ready

    def close(self) -> None:
        """End it, and wait until it has ended; may be called again."""
        if self._thread.is_alive():
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _main(self) -> None:
        with suppress(zmq.ContextTerminated, Stopped):
            self._run(self)
        self.socket.close(linger=0)
