"""Agreement of ranks on one machine, over sockets between their training threads.

A collective of gloo goes through threads of its own: four of them have to wake up, one after another, for a value to
arrive. Where cores are few they do so behind a rank that copies already, or run in circles for a lock that a sleeping
one holds (measured, two ranks on two cores: 0.3 ms, and in every third save 2 to 4). Here whoever waits is woken by the
rank that it waits for.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.patience import Patience
from holdfast.checkpoint.wire.readiness import is_writable, wait_readable

_LENGTH = 8  # bytes in front of a value that say how long it is
_BROADCAST, _GATHER, _ANY = b"b", b"g", b"a"  # in front of these: what is agreed on
_YES, _NO = b"y", b"n"
_RANK = 4  # bytes of the first message, which says who it is from
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = "/proc/self/ns/pid"


class LineAgreement:
    """See ``Agreement``. Rank 0 has a line to every other rank, each of these one to rank 0."""

    def __init__(
        self,
        lines: dict[int, socket.socket],
        *,
        rank: int,
        world: int,
        timeout_s: float,
        peers: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """``lines`` by the ranks at their other ends; ``peers``: see ``Agreement``."""
        self.rank = rank
        self.world = world
        self.peers = peers
        self._lines = dict(sorted(lines.items()))
        self._timeout_s = timeout_s
        for line in lines.values():
            line.setblocking(False)
        weakref.finalize(self, _close, tuple(lines.values()), tuple(peers.values()))

    def broadcast(self, value: Any, *, wait: bool = True) -> Any:
        """Rank 0's value, as JSON. It never waits until the others have it, unless it is long."""
        if self.rank != 0:
            return json.loads(self._receive(0, _BROADCAST))
        data = json.dumps(value).encode()
        self._send_all(data, _BROADCAST)
        return json.loads(data) if wait else value

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, as JSON: rank 0 puts them together."""
        own = json.dumps(value).encode()
        if self.rank == 0:
            whole = b"[" + b",".join([own, *self._receive_all(_GATHER)]) + b"]"
            self._send_all(whole, _GATHER)
        else:
            self._send(0, own, _GATHER)
            whole = self._receive(0, _GATHER)
        found: list[Any] = json.loads(whole)
        return found

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
        if self.rank == 0:
            said = [_YES if flag else _NO, *self._receive_all(_ANY)]
            found = _YES if _YES in said else _NO
            self._send_all(found, _ANY)
        else:
            self._send(0, _YES if flag else _NO, _ANY)
            found = self._receive(0, _ANY)
        return found == _YES

    def _send_all(self, data: bytes, kind: bytes) -> None:
        for rank in self._lines:
            self._send(rank, data, kind)

    def _receive_all(self, kind: bytes) -> list[bytes]:
        return [self._receive(rank, kind) for rank in self._lines]

    def _send(self, rank: int, data: bytes, kind: bytes) -> None:
        patience, line = self._patience(), self._lines[rank]
        left = memoryview(kind + len(data).to_bytes(_LENGTH, "little") + data)
        while left:
            try:
                left = left[line.send(left) :]
            except BlockingIOError:
                while not is_writable(line, patience.next_s):
                    patience.spent(f"rank {rank} does not listen")
            except OSError as error:
                self._is_gone(rank, patience, error)

    def _receive(self, rank: int, kind: bytes) -> bytes:
        patience = self._patience()
        head = self._exactly(len(kind) + _LENGTH, rank, patience)
        if not head.startswith(kind):  # nobody waits for an answer to a broadcast: it may have come long ago
            raise patience.missing(f"rank {rank} agrees on something else")
        return bytes(self._exactly(int.from_bytes(head[len(kind) :], "little"), rank, patience))

    def _exactly(self, count: int, rank: int, patience: Patience) -> bytearray:
        line, found = self._lines[rank], bytearray()
        while len(found) < count:
            try:
                data = line.recv(count - len(found))
            except BlockingIOError:
                while not wait_readable([line], patience.next_s):
                    patience.spent(f"rank {rank} did not come")
            except OSError as error:
                self._is_gone(rank, patience, error)
            else:
                if not data:
                    self._is_gone(rank, patience)
                found += data
        return found

    def _patience(self) -> Patience:
        return Patience(rank=self.rank, world=self.world, timeout_s=self._timeout_s)

    def _is_gone(self, rank: int, patience: Patience, error: OSError | None = None) -> NoReturn:
        raise patience.missing(f"rank {rank} is gone") from error


def machine_of_this_rank() -> str | None:
    """What all processes have in common that can see each other, those of a machine, user and container.

    None where it is not known.
    """
    try:
        return f"{_BOOT.read_text().strip()} {os.getuid()} {os.readlink(_PIDS)}"
    except OSError:
        return None


def draw_lines(
    agreement: Agreement, timeout_s: float, machine: Callable[[], str | None] = machine_of_this_rank
) -> LineAgreement | None:
    """Lines between all ranks, which come here together; None if they are on several machines, or cannot connect."""
    machines, pids = zip(*agreement.gather([machine(), os.getpid()]), strict=True)
    if len(set(machines)) > 1 or None in machines:
        return None
    peers = _watch(agreement.rank, pids)
    with _door(agreement) as (door, path):
        path = agreement.broadcast(path)
        lines = {} if path is None or door is not None else _call(path, agreement.rank)
        if agreement.any(path is None or not peers or (door is None and not lines)):
            _close(tuple(lines.values()), tuple(peers.values()))
            return None
        if door is not None:
            lines = dict(_answer(door) for _ in range(agreement.world - 1))
    return LineAgreement(lines, rank=agreement.rank, world=agreement.world, timeout_s=timeout_s, peers=peers)


def _watch(rank: int, pids: Sequence[int]) -> dict[int, int]:
    """Pidfds of the other ranks, which are alive now; none where one cannot be had."""
    found: dict[int, int] = {}
    try:
        for other, pid in enumerate(pids):
            if other != rank:
                found[other] = os.pidfd_open(pid)
    except OSError:
        _close((), tuple(found.values()))
        return {}
    return found


@contextmanager
def _door(agreement: Agreement) -> Iterator[tuple[socket.socket | None, str | None]]:
    """On rank 0: where the others can call, nobody else can, and the path of that if it could be made."""
    if agreement.rank != 0:
        yield None, None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder, socket.socket(socket.AF_UNIX) as door:
        path = os.path.join(folder, "ranks")
        try:
            door.bind(path)
            door.listen(agreement.world)
        except OSError:  # a path that is too long, or a file system without sockets
            yield door, None
        else:
            yield door, path


def _call(path: str, rank: int) -> dict[int, socket.socket]:
    """A line to rank 0; none if it cannot be reached, such as from another container."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(path)
        line.sendall(rank.to_bytes(_RANK, "little"))
    except OSError:
        line.close()
        return {}
    return {0: line}


def _answer(door: socket.socket) -> tuple[int, socket.socket]:
    """A rank that has called, and its line."""
    line, _ = door.accept()
    return int.from_bytes(line.recv(_RANK, socket.MSG_WAITALL), "little"), line


def _close(lines: Sequence[socket.socket], pidfds: Sequence[int]) -> None:
    for line in lines:
        line.close()
    for each in pidfds:
        os.close(each)
