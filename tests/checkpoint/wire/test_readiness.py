"""A trainer may have opened thousands of files: descriptors of any number can be waited for."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from holdfast.checkpoint.wire.messages import Channel, ChannelClosed, Ping
from holdfast.checkpoint.wire.readiness import is_writable, wait_readable

HIGH = 1500  # above what select() can take


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, with high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH + 1:
        pytest.skip(f"this system lets a process open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 100), hard))
    ends = socket.socketpair()
    found = tuple(socket.socket(fileno=fcntl.fcntl(each, fcntl.F_DUPFD, HIGH)) for each in ends)
    for each in ends:
        each.close()
    yield found[0], found[1]
    for each in found:
        each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_messages_travel_over_descriptors_with_high_numbers(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = map(Channel, pair)
    assert there.fileno() >= HIGH
    assert there.receive(0.0) is None
    assert here.has_room
    here.send(Ping(number=3))
    assert there.receive(10.0) == Ping(number=3)
    here.hang_up()
    with pytest.raises(ChannelClosed):
        there.receive(10.0)


def test_only_those_that_are_ready_are_told(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    assert wait_readable([here, there], 0.0) == set()
    here.send(b"!")
    assert wait_readable([here.fileno(), there]) == {there.fileno()}
    there.recv(1)
    here.close()
    assert wait_readable([there], 10.0) == {there.fileno()}  # nobody is left to write
    assert is_writable(there)
