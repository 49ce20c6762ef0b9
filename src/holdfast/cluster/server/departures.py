"""Messages on their way out, of which some wait for what another thread of the server finds out."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity_messages import Given, Values


class Departures:
    """Sends to each member in order: behind a message that is not complete, whatever else is for that member waits.

    What records hold, and syndromes, is settled when they are asked for, so they may leave later; no other member waits
    for them.

    Args:
        send: What gives messages to the streams.

    Attributes:
        fd: Readable when something has become complete.
    """

    def __init__(self, send: Callable[[Iterable[Send]], None]) -> None:
        self._send = send
        self._held: dict[Member, deque[Send]] = {}
        self._lock = threading.Lock()  # of the descriptor: other threads say that something is complete
        self._is_woken = self._is_closed = False
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def send(self, sends: Iterable[Send]) -> None:
        """Never waits."""
        for each in sends:
            if (found := _awaited(each)) is not None and not found.done():
                self._held.setdefault(each.to, deque()).append(each)
                found.add_done_callback(self._wake)
            elif each.to in self._held:
                self._held[each.to].append(each)
            else:
                self._send([_completed(each)])

    def release(self) -> None:
        """Send what has become complete, and what waited behind it."""
        if not self._is_woken:
            return
        with self._lock:
            self._is_woken = False
            os.eventfd_read(self.fd)
        for member, held in list(self._held.items()):
            while held and ((found := _awaited(held[0])) is None or found.done()):
                self._send([_completed(held.popleft())])
            if not held:
                del self._held[member]

    def close(self) -> None:
        """Wait for what is missing, and send all."""
        try:
            for held in self._held.values():
                self._send(map(_completed, held))
        finally:
            with self._lock:
                self._is_closed = True
                os.close(self.fd)

    def _wake(self, _: Future[Any]) -> None:
        with self._lock:
            if not (self._is_woken or self._is_closed):
                self._is_woken = True
                os.eventfd_write(self.fd, 1)


def _awaited(send: Send) -> Future[Any] | None:
    message = send.message
    return message.records if isinstance(message, Given | Values) and isinstance(message.records, Future) else None


def _completed(send: Send) -> Send:
    """With what was found out; waits for it."""
    if (found := _awaited(send)) is None:
        return send
    return replace(send, message=replace(cast(Given | Values, send.message), records=found.result()))
