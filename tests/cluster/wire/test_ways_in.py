"""An endpoint whose bytes several threads move: each of them gets as many connections as the others."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import Applied
from holdfast.cluster.wire.address import Address
from tests.cluster.wire.meeting import Meeting, received, until


def servers(count: int) -> list[Member]:
    return [Member(Role.SERVER, index, 1) for index in range(count)]


@pytest.mark.parametrize("newcomer", range(5))
def test_servers_that_connect_at_the_same_time_share_a_newcomers_threads_evenly(
    loopback: Meeting, newcomer: int
) -> None:
    members = servers(5)
    to = members.pop(newcomer)
    endpoint = loopback.endpoint(to, io_threads=2)
    for each in members:
        sender = loopback.endpoint(each)
        sender.connect(to, endpoint.address)
        sender.send(to, Applied(each.index))
    assert sorted(message.number for _, message in received(endpoint, 4)) == [each.index for each in members]
    assert connections(endpoint.address) == [2, 2]


def test_workers_share_a_servers_threads_evenly(loopback: Meeting) -> None:
    server = loopback.endpoint(Member(Role.SERVER, 1, 1), io_threads=3)
    for index in range(6):
        worker = loopback.endpoint(Member(Role.WORKER, index, 1))
        worker.connect(server.member, server.address)
    until(lambda: sum(connections(server.address)) == 6)
    assert connections(server.address) == [2, 2, 2]


@pytest.mark.parametrize("sender", range(5))
def test_what_a_server_sends_to_others_is_divided_evenly_and_stays_so_when_one_is_replaced(
    loopback: Meeting, sender: int
) -> None:
    members = servers(5)
    endpoint = loopback.endpoint(members.pop(sender), io_threads=2)
    peers = {each: loopback.endpoint(each) for each in members}
    for each in members:
        endpoint.connect(each, peers[each].address)
    until(lambda: connections(*(each.address for each in peers.values()), outgoing=True) == [2, 2])
    for each in members:
        later = replace(each, incarnation=2)
        endpoint.disconnect(each)
        peers[later] = loopback.endpoint(later)
        endpoint.connect(later, peers[later].address)
        del peers[each]
        until(lambda: connections(*(each.address for each in peers.values()), outgoing=True) == [2, 2])


def test_every_way_in_leads_to_the_same_endpoint(meeting: Meeting) -> None:
    """And strangers are turned away at each of them."""
    server = meeting.endpoint(Member(Role.SERVER, 0, 1), io_threads=3)
    strangers = Meeting(meeting.kind, Path("unused"))
    assert len({server.address.url, *server.address.other_urls}) == 3
    for index in range(3):
        worker = Member(Role.WORKER, index, 1)
        stranger = meeting.endpoint(worker, credentials=strangers.credentials)
        stranger.connect(server.member, server.address)
        until(lambda refused=index + 1: server.receive(0.01) == [] and server.refused >= refused)
        endpoint = meeting.endpoint(worker)
        endpoint.connect(server.member, server.address)
        for number in range(5):
            endpoint.send(server.member, Applied(number))
        assert received(server, 5) == [(worker, Applied(number)) for number in range(5)]
        server.send(worker, Applied(7))
        assert received(endpoint, 1) == [(server.member, Applied(7))]


def test_an_address_with_several_ways_in_is_introduced_whole(loopback: Meeting) -> None:
    one, other = servers(2)
    controller = loopback.endpoint(CONTROLLER)
    for each in (one, other):
        endpoint = loopback.endpoint(each, io_threads=2)
        endpoint.connect(CONTROLLER, controller.address)
        endpoint.send(CONTROLLER, Applied(0))
        received(controller, 1)
        assert controller.addresses[each] == endpoint.address
        assert Address.from_json(endpoint.address.to_json()) == endpoint.address


def connections(*addresses: Address, outgoing: bool = False) -> list[int]:
    """How many each of ZeroMQ's threads has of those that came in by some addresses, or that lead to these.

    Each thread has an epoll of its own.
    """
    ports = {urlsplit(url).port for each in addresses for url in (each.url, *each.other_urls)}
    counts = [sum(port_of(fd, is_other=outgoing) in ports for fd in watched) for watched in epolls()]
    return sorted(count for count in counts if count)


def epolls() -> Iterator[list[int]]:
    """Of this process: what each watches."""
    for epoll in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            lines = Path(f"/proc/self/fdinfo/{epoll}").read_text().splitlines()
            if watched := [int(line.split()[1]) for line in lines if line.startswith("tfd:")]:
                yield watched


def port_of(fd: int, *, is_other: bool) -> int | None:
    """This one of a connection, or the other one's; None: it is something else, as other tests may have left."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as found:
                theirs, ours = found.getpeername(), found.getsockname()  # the first fails where it only listens
                end = theirs if is_other else ours
                return int(end[1]) if isinstance(end, tuple) else None  # a path: of another family
    return None
