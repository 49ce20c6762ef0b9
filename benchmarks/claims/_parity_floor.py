"""How long it takes to move bytes between servers over their streams, and do nothing else.

Every byte comes from a place of its own in memory, as a server's rows do: a block that is sent again and again would
come from the processor's cache. Streams and heaps are set up as a server's are.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.parity_messages import Values
from holdfast.cluster.heap import keep_freed_memory, ready_heap
from holdfast.cluster.launch.local import LOOPBACK
from holdfast.cluster.launch.threads import HUGE_PAGES, ONE_HEAP
from holdfast.cluster.link import io_threads
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.server.rebuild_pace import FAST_ASKED
from holdfast.cluster.wire.address import Address
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.keys import Credentials

Streams = Mapping[tuple[int, int], int]  # by sender and receiver: bytes
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What it took until everything had arrived."""

    took_s: float
    cpu_s: float  # of all processes together


def _loopback(_: int) -> str:
    return LOOPBACK


def wire_floor(streams: Streams, *, block_bytes: int, host: Callable[[int], str] = _loopback) -> Moved:
    """Move bytes, and nothing else.

    Args:
        streams: Who sends how much to whom.
        block_bytes: Of a message.
        host: The address of a server.
    """
    context, credentials = mp.get_context("spawn"), Credentials.make().to_json()
    servers = sorted({each for stream in streams for each in stream})
    pipes = {server: context.Pipe() for server in servers}
    processes = []
    for server in servers:
        arguments = server, host(server), dict(streams), block_bytes, credentials, pipes[server][1]
        processes.append(context.Process(target=_serve, args=arguments, daemon=True))
    with _memory_of_servers():
        for process in processes:
            process.start()
    addresses = {server: _answered(pipes[server][0]) for server in servers}
    for server in servers:
        pipes[server][0].send(addresses)
    for server in servers:
        _answered(pipes[server][0])  # it is connected
    began_s = time.monotonic()
    for server in servers:
        pipes[server][0].send(None)
    ended_s, cpu_s = zip(*(_answered(pipes[server][0]) for server in servers), strict=True)
    for server, process in zip(servers, processes, strict=True):
        pipes[server][0].send(None)
        process.join(_PATIENCE_S)
    return Moved(took_s=max(ended_s) - began_s, cpu_s=sum(cpu_s))


@contextmanager
def _memory_of_servers() -> Iterator[None]:
    """What is started within takes memory as servers do."""
    before = dict(os.environ)
    os.environ.update({**HUGE_PAGES, **ONE_HEAP, **before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


def _answered(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError("a process of the wire's floor does not answer")
    return pipe.recv()


def _serve(server: int, host: str, streams: Streams, block_bytes: int, credentials: str, pipe: Connection) -> None:
    """Be one server: send what is to be sent, and receive what comes."""
    keep_freed_memory(one_heap=True)
    secrets, threads = Credentials.from_json(credentials), io_threads(Role.SERVER, has_parity=True)
    endpoint = Endpoint(_member(server), secrets, f"tcp://{host}:*", io_threads=threads)
    left = {receiver: size for (sender, receiver), size in streams.items() if sender == server}
    awaited = sum(size for (_, receiver), size in streams.items() if receiver == server)
    memory, at = np.ones(sum(left.values()) // 4 + len(left), np.int32), 0
    ready_heap(FAST_ASKED * block_bytes)
    pipe.send(endpoint.address)
    addresses: dict[int, Address] = pipe.recv()
    for other, address in addresses.items():
        if other != server:
            endpoint.connect(_member(other), address)
    pipe.send("connected")
    pipe.recv()
    used_s = time.process_time()
    while left or awaited:
        for receiver in list(left):
            size = min(left[receiver], block_bytes)
            records = (memory[at : at + -(-size // 4)],)
            endpoint.send(_member(receiver), Values(1, StripeSet.run(0, size), records, {}))
            at += size // 4
            left[receiver] -= size
            if not left[receiver]:
                del left[receiver]
        for _, message in endpoint.receive(0.0 if left else 0.01):
            if isinstance(message, Values):
                awaited -= len(message.stripes)
    pipe.send((time.monotonic(), time.process_time() - used_s))
    pipe.recv()
    endpoint.close()


def _member(server: int) -> Member:
    return Member(Role.SERVER, server, 1)
