"""Endpoints over real sockets: order, gaps, strangers, replacements."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import replace

import numpy as np
import pytest
import zmq

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Applied, Broken, Pull, Push, Rows
from holdfast.cluster.core.progress import BEGINNING
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.frames import Opening, Route, write
from holdfast.cluster.wire.keys import Credentials
from holdfast.errors import ConfigurationError
from tests.cluster.wire.meeting import SERVER, WORKER, Meeting, received, until
from tests.cluster.wire.proxy import Proxy

LATER = replace(SERVER, incarnation=2)


def test_messages_arrive_in_order_and_are_answered_without_an_introduction(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    for number in range(500):
        worker.send(SERVER, Applied(number))
    assert received(server, 500) == [(WORKER, Applied(number)) for number in range(500)]
    for number in range(500):
        server.send(WORKER, Applied(number))
    assert received(worker, 500) == [(SERVER, Applied(number)) for number in range(500)]


def test_large_arrays_whose_sender_forgets_them_at_once_arrive_as_they_were(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    for number in range(12):
        gradients = (np.full((256, 1024), number, np.float32), np.arange(20_000), np.full(7, number, np.int32))
        worker.send(SERVER, Push(number, gradients, b"place", BEGINNING))
        del gradients
        np.full((256, 1024), -1.0, np.float32)  # takes memory that was freed too early
    for number, (_, push) in enumerate(received(server, 12)):
        assert isinstance(push, Push)
        large, middle, small = push.gradients
        assert (large == number).all() and (middle == np.arange(20_000)).all() and (small == number).all()


def test_a_message_waits_for_the_address_of_its_receiver(loopback: Meeting) -> None:
    worker, server = loopback.endpoint(WORKER), loopback.endpoint(SERVER)
    worker.send(SERVER, Applied(1))
    worker.send(SERVER, Applied(2))
    assert server.receive(0.05) == []
    worker.connect(SERVER, server.address)
    worker.send(SERVER, Applied(3))
    assert received(server, 3) == [(WORKER, Applied(number)) for number in (1, 2, 3)]


def introduced(meeting: Meeting) -> tuple[Endpoint, Endpoint]:
    """A worker, and a server that knows it without being known."""
    worker, server, controller = (meeting.endpoint(each) for each in (WORKER, SERVER, CONTROLLER))
    for each in (worker, server):
        each.connect(CONTROLLER, controller.address)
    until(lambda: controller.receive(0.05) or len(controller.addresses) == 2)
    controller.introduce(SERVER, [WORKER])
    until(lambda: server.receive(0.05) or WORKER in server.addresses)
    return worker, server


def test_a_member_that_is_known_is_reached_before_anything_is_said_to_it(meeting: Meeting) -> None:
    worker, server = introduced(meeting)
    server.reach(WORKER)
    until(lambda: worker.receive(0.05) or SERVER in worker.addresses)
    server.send(WORKER, Applied(1))
    assert received(worker, 1) == [(SERVER, Applied(1))]


def test_nobody_is_reached_who_is_unknown_or_disconnected(loopback: Meeting) -> None:
    worker, server = introduced(loopback)
    server.disconnect(WORKER)
    server.reach(WORKER)
    server.reach(LATER)
    assert worker.receive(0.05) == [] and SERVER not in worker.addresses


def test_the_controller_introduces_members_before_what_it_says_next(meeting: Meeting) -> None:
    worker, server, controller = (meeting.endpoint(each) for each in (WORKER, SERVER, CONTROLLER))
    for each in (worker, server):
        each.connect(CONTROLLER, controller.address)
        each.send(CONTROLLER, Applied(0))
    received(controller, 2)
    controller.introduce(WORKER, [SERVER])
    controller.send(WORKER, Applied(1))
    assert received(worker, 1) == [(CONTROLLER, Applied(1))]
    worker.send(SERVER, Applied(2))
    assert received(server, 1) == [(WORKER, Applied(2))]


def reports_of(server: Endpoint, worker: Endpoint) -> list[object]:
    """What a server says of a worker that goes on beating."""
    reports: list[object] = []
    until(lambda: worker.wait(0.06) or reports.extend(server.receive()) or reports)  # type: ignore[func-returns-value]
    return reports


def test_frames_that_a_cut_connection_lost_break_the_stream(loopback: Meeting) -> None:
    worker, server = loopback.endpoint(WORKER, pulse_s=0.05), loopback.endpoint(SERVER)
    proxy = Proxy(int(server.address.url.rpartition(":")[2]))
    try:
        worker.connect(SERVER, replace(server.address, url=f"tcp://127.0.0.1:{proxy.port}"))
        worker.send(SERVER, Applied(1))
        assert received(server, 1) == [(WORKER, Applied(1))]
        proxy.swallow()
        worker.send(SERVER, Applied(2))
        assert proxy.swallowed.wait(30)
        proxy.cut()
        worker.send(SERVER, Applied(3))  # over the connection that ZeroMQ makes by itself, or over the one that is cut
        assert reports_of(server, worker) == [(SERVER, Broken(WORKER))]
        worker.send(SERVER, Applied(4))
        until(lambda: server.receive() or server.dropped.broken)
        assert server.receive() == []
    finally:
        worker.disconnect(SERVER)
        proxy.close()


def test_the_loss_of_the_last_message_shows_without_another_one(loopback: Meeting) -> None:
    worker, server = loopback.endpoint(WORKER, pulse_s=0.05), loopback.endpoint(SERVER)
    proxy = Proxy(int(server.address.url.rpartition(":")[2]))
    try:
        worker.connect(SERVER, replace(server.address, url=f"tcp://127.0.0.1:{proxy.port}"))
        worker.send(SERVER, Applied(1))
        received(server, 1)
        proxy.swallow()
        worker.send(SERVER, Applied(2))
        assert proxy.swallowed.wait(30)
        proxy.cut()
        assert reports_of(server, worker) == [(SERVER, Broken(WORKER))]
    finally:
        worker.disconnect(SERVER)
        proxy.close()


def test_a_replacement_on_the_same_address_gets_nothing_that_was_for_its_predecessor(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    worker.send(SERVER, Applied(1))
    received(server, 1)
    server.close()
    worker.send(SERVER, Applied(2))
    later = meeting.endpoint(LATER, url=server.address.url)
    worker.send(SERVER, Applied(3))
    worker.connect(LATER, later.address)
    worker.send(LATER, Applied(4))
    assert received(later, 1) == [(WORKER, Applied(4))]
    if meeting.kind != "encrypted":  # there the handshake fails before anybody is asked
        until(lambda: later.refused)
    assert later.receive(0.2) == []


def raw(meeting: Meeting, server: Endpoint, sender: Member = WORKER) -> tuple[zmq.Socket[bytes], bytes]:
    """A connection of a member that says what it likes."""
    made = meeting.endpoint(replace(sender, index=99))
    return made.sockets.connected(server.address), Route(sender, server.member).to_bytes()


def test_an_older_incarnation_is_not_listened_to(loopback: Meeting) -> None:
    server = loopback.endpoint(SERVER)
    line, _ = raw(loopback, server)
    newer = replace(WORKER, incarnation=2)
    for sender, number in ((WORKER, 1), (newer, 1), (WORKER, 2), (newer, 2)):
        line.send(write(Route(sender, SERVER).to_bytes(), number, Applied(number))[0])
    assert received(server, 3) == [(WORKER, Applied(1)), (newer, Applied(1)), (newer, Applied(2))]
    assert server.dropped.outdated == 1
    line.close()


def test_a_malformed_message_ends_its_senders_stream_and_nothing_else(loopback: Meeting) -> None:
    worker, server = loopback.pair()
    other = Member(Role.WORKER, 1, 1)
    line, route = raw(loopback, server, other)
    line.send(write(route, 1, Applied(1))[0])
    line.send(b"nonsense")
    line.send_multipart([write(route, 2, Applied(1))[0], b"more"])
    line.send(write(route, 3, Applied(3))[0])
    assert received(server, 2) == [(other, Applied(1)), (SERVER, Broken(other))]
    until(lambda: server.receive() or server.dropped.broken)
    assert server.dropped.malformed == 2
    worker.send(SERVER, Applied(5))
    assert received(server, 1) == [(WORKER, Applied(5))]
    line.close()


def test_whatever_members_send_the_process_lives(loopback: Meeting) -> None:
    worker, server = loopback.pair()
    line, _ = raw(loopback, server)
    chance = random.Random(0)
    sample = Push(3, (np.arange(9), np.zeros((40, 40), np.float32)), b"place", BEGINNING)
    for incarnation in range(1, 400):
        head, arrays = write(Route(replace(WORKER, index=1, incarnation=incarnation), SERVER).to_bytes(), 1, sample)
        frames = [head, *(bytearray(array) for array in arrays)]
        for _ in range(chance.randint(1, 3)):
            frame = chance.choice(frames)
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        del frames[0][chance.choice((0, 20, 40, len(head), len(head))) :]
        line.send_multipart(frames[: chance.choice((1, 2, 2, 2))])
    worker.send(SERVER, Applied(5))
    arrived: list[tuple[Member, object]] = []
    until(lambda: (WORKER, Applied(5)) in arrived or arrived.extend(server.receive()))  # type: ignore[func-returns-value]
    until(lambda: server.receive(0.01) == [])
    assert server.dropped.malformed > 50
    worker.send(SERVER, Applied(6))
    assert received(server, 1) == [(WORKER, Applied(6))]
    line.close()


def test_a_member_without_the_jobs_secrets_is_refused(meeting: Meeting) -> None:
    server = meeting.endpoint(SERVER)
    stranger = meeting.endpoint(WORKER, credentials=Credentials.make())
    stranger.connect(SERVER, server.address)
    for number in range(100):
        stranger.send(SERVER, Applied(number))
    until(lambda: server.receive() or server.refused)
    assert server.receive(0.1) == []
    worker = meeting.endpoint(replace(WORKER, index=1))
    worker.connect(SERVER, server.address)
    worker.send(SERVER, Applied(1))
    assert received(server, 1) == [(worker.member, Applied(1))]


def test_a_stranger_with_a_plain_socket_or_none_of_zeromq_gets_nothing(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain.connect(server.address.url)
    for _ in range(100):
        plain.send(write(Route(WORKER, SERVER).to_bytes(), 1, Opening(server.address))[0])
    if meeting.kind != "ipc":
        with socket.create_connection(("127.0.0.1", int(server.address.url.rpartition(":")[2]))) as garbage:
            garbage.sendall(bytes(range(256)) * 100)
    worker.send(SERVER, Applied(1))
    assert received(server, 1) == [(WORKER, Applied(1))]
    assert not plain.poll(100)
    assert server.receive() == []
    context.destroy(linger=0)


def test_what_is_sent_to_the_disconnected_is_dropped_and_does_not_hold_up_the_end(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    worker.send(SERVER, Applied(1))
    received(server, 1)
    server.close()
    for number in range(20):
        worker.send(SERVER, Rows(number, (np.zeros(1_000_000, np.uint8),)))
    worker.disconnect(SERVER)
    worker.send(SERVER, Applied(2))
    assert worker.dropped.unsent == 1
    worker.close(linger_s=1000)


def test_nothing_is_kept_for_earlier_members_in_the_place_of_one_that_is_disconnected(loopback: Meeting) -> None:
    worker, server = loopback.pair()
    worker.send(LATER, Applied(1))  # waits for an address
    newest = replace(SERVER, incarnation=3)
    worker.connect(newest, loopback.endpoint(newest).address)
    worker.disconnect(LATER)
    assert set(worker.addresses) == {newest}
    assert worker.dropped.unsent == 1
    worker.send(SERVER, Applied(2))
    assert worker.dropped.unsent == 2
    assert server.receive() == []


def test_a_view_disconnects_whoever_it_replaces(loopback: Meeting) -> None:
    worker, server = loopback.pair()
    worker.send(Member(Role.SERVER, 1, 1), Applied(1))  # waits for an address
    view = View.first(servers=2, workers=1)
    worker.disconnect_replaced(view)
    assert set(worker.addresses) == {SERVER}
    worker.disconnect_replaced(view.replacing(SERVER).replacing(Member(Role.SERVER, 1, 1)))
    assert worker.addresses == {}
    assert worker.dropped.unsent == 1
    assert server.receive() == []


def test_the_last_words_before_the_end_get_out(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    for number in range(50):
        worker.send(SERVER, Rows(number, (np.zeros(100_000, np.float32),)))
    worker.close(linger_s=60)
    assert len(received(server, 50)) == 50


def test_waiting_ends_for_messages_and_for_file_descriptors(loopback: Meeting) -> None:
    worker, server = loopback.pair()
    reader, writer = os.pipe()
    try:
        assert server.wait(0.01, [reader]) == []
        os.write(writer, b"x")
        assert server.wait(None, [reader]) == [reader]
        worker.send(SERVER, Applied(1))
        assert server.wait(None) == []
        assert received(server, 1) == [(WORKER, Applied(1))]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_fork_cannot_use_its_parents_sockets(loopback: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _ = loopback.pair()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (lambda: worker.send(SERVER, Applied(1)), worker.receive):
        with pytest.raises(ConfigurationError, match="fork"):
            use()


def test_a_port_that_is_taken_is_named(loopback: Meeting) -> None:
    server = loopback.endpoint(SERVER)
    with pytest.raises(ConfigurationError, match=server.address.url):
        loopback.endpoint(LATER, url=server.address.url)


@pytest.mark.parametrize(
    "url", ["tcp://0.0.0.0:*", "udp://127.0.0.1:1", "tcp://:1", "ipc://", "tcp://no.such.host.invalid:*"]
)
def test_an_address_that_others_cannot_reach_is_refused(loopback: Meeting, url: str) -> None:
    with pytest.raises(ConfigurationError):
        loopback.endpoint(SERVER, url=url)


def test_only_loopback_and_ipc_are_not_encrypted(loopback: Meeting) -> None:
    assert not loopback.endpoint(SERVER, "tcp://localhost:*").address.is_encrypted
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for host in others:
        assert loopback.endpoint(SERVER, f"tcp://{host}:*").address.is_encrypted == (not host.startswith("127."))


def test_a_pull_that_is_answered_takes_its_rows_along(meeting: Meeting) -> None:
    worker, server = meeting.pair()
    rows = (np.arange(100_000), np.arange(3))
    worker.send(SERVER, Pull(1, rows, 0))
    ((sender, pull),) = received(server, 1)
    assert isinstance(pull, Pull)
    server.send(sender, Rows(pull.number, pull.rows))  # what was received may be given away again
    del pull
    ((_, answer),) = received(worker, 1)
    assert isinstance(answer, Rows)
    assert all((one == other).all() for one, other in zip(rows, answer.values, strict=True))
