"""Endpoints of one job in one process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import Message
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.keys import Credentials

SERVER, WORKER = Member(Role.SERVER, 0, 1), Member(Role.WORKER, 0, 1)
PATIENCE_S = 30.0


class Meeting:
    """Makes endpoints on one kind of address: loopback, ipc, encrypted (loopback as if it were not)."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.credentials = Credentials.make()
        self._path = path
        self._numbers = itertools.count()
        self._endpoints: list[Endpoint] = []

    def endpoint(
        self,
        member: Member,
        url: str | None = None,
        credentials: Credentials | None = None,
        pulse_s: float = 1.0,
        io_threads: int = 1,
    ) -> Endpoint:
        is_encrypted = True if self.kind == "encrypted" else None
        known = credentials or self.credentials
        made = Endpoint(
            member, known, url or self.url(), is_encrypted=is_encrypted, pulse_s=pulse_s, io_threads=io_threads
        )
        self._endpoints.append(made)
        return made

    def url(self) -> str:
        return f"ipc://{self._path}/{next(self._numbers)}" if self.kind == "ipc" else "tcp://127.0.0.1:*"

    def pair(self) -> tuple[Endpoint, Endpoint]:
        """A worker that knows its server."""
        worker, server = self.endpoint(WORKER), self.endpoint(SERVER)
        worker.connect(SERVER, server.address)
        return worker, server

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close(linger_s=0)


def received(endpoint: Endpoint, count: int) -> list[tuple[Member, Message]]:
    """The next messages."""
    arrived: list[tuple[Member, Message]] = []
    until(lambda: len(arrived) >= count or arrived.extend(endpoint.receive(0.05)))  # type: ignore[func-returns-value]
    return arrived


def until(is_done: Callable[[], object]) -> None:
    """Ask until it is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.001)


__all__ = ["CONTROLLER", "SERVER", "WORKER", "Meeting", "received", "until"]
