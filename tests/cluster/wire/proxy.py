"""A network that loses what it was given: a relay between two sockets that can swallow bytes and cut connections."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Relays connections to a port. ``swallow`` makes it take bytes and forward none; ``cut`` resets connections."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._swallows = threading.Event()
        self.swallowed = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def swallow(self) -> None:
        self._swallows.set()

    def cut(self) -> None:
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._swallows.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()  # it may be connecting somebody
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._start(self._relay, near, far)
                self._start(self._relay, far, near)

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._swallows.is_set():
                    self.swallowed.set()
                else:
                    target.sendall(data)
