"""Heartbeats over real sockets, both ways."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from holdfast.cluster.core.members import CONTROLLER
from holdfast.cluster.core.messages import Applied
from holdfast.cluster.wire.beats import Beats
from holdfast.cluster.wire.frames import Beat, Route, write
from holdfast.cluster.wire.heartbeat import Heartbeat
from tests.cluster.wire.meeting import SERVER, WORKER, Meeting, until

PERIOD_S = 0.02


def test_a_member_that_beats_is_not_overdue_and_one_that_stops_is(meeting: Meeting) -> None:
    controller, server = meeting.endpoint(CONTROLLER), meeting.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=0.5)
    beats.watch(SERVER, grace_s=60)
    beats.watch(WORKER)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=PERIOD_S)
    until(beats.overdue)
    assert beats.overdue() == [WORKER]
    beats.forget(WORKER)
    heartbeat.close()
    until(beats.overdue)
    assert beats.overdue() == [SERVER]
    beats.close()


def test_a_member_notices_that_the_controller_is_silent(meeting: Meeting) -> None:
    controller, server = meeting.endpoint(CONTROLLER), meeting.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=0.5)
    beats.watch(SERVER)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=PERIOD_S)
    until(lambda: heartbeat.answered > 2)
    assert not heartbeat.is_dismissed
    beats.close()
    until(lambda: heartbeat.controller_silent_s > 5 * PERIOD_S)
    heartbeat.close()


def test_a_member_that_nobody_counts_on_is_told(loopback: Meeting) -> None:
    controller, server = loopback.endpoint(CONTROLLER), loopback.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=60)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=PERIOD_S)
    until(lambda: heartbeat.is_dismissed)
    assert beats.overdue() == []
    heartbeat.close()
    beats.close()


def test_an_orphan_is_overdue_although_it_beats_and_hears_that_it_was_replaced(meeting: Meeting) -> None:
    controller, server = meeting.endpoint(CONTROLLER), meeting.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=0.5)
    beats.watch(SERVER)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=PERIOD_S)
    until(lambda: heartbeat.answered > 2)
    heartbeat.is_orphan = True
    until(beats.overdue)
    last = heartbeat.answered
    until(lambda: heartbeat.answered > last + 2)
    assert beats.overdue() == [SERVER] and not heartbeat.is_dismissed
    beats.forget(SERVER)
    until(lambda: heartbeat.is_dismissed)
    heartbeat.close()
    beats.close()


def test_a_socket_that_is_no_beat_is_not_answered_and_does_no_harm(loopback: Meeting) -> None:
    controller, server = loopback.endpoint(CONTROLLER), loopback.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=60)
    beats.watch(SERVER)
    line = server.sockets.connected(beats.address)
    line.send(b"nonsense")
    line.send_multipart([write(Route(SERVER, CONTROLLER).to_bytes(), 1, Beat())[0], b"more"])
    line.send(write(Route(SERVER, CONTROLLER).to_bytes(), 1, Applied(1))[0])
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=PERIOD_S)
    until(lambda: heartbeat.answered > 2)
    assert not line.poll(50)
    line.close()
    heartbeat.close()
    beats.close()


def test_a_heartbeat_does_not_hold_up_the_end_of_its_endpoint(loopback: Meeting) -> None:
    controller, server = loopback.endpoint(CONTROLLER), loopback.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=60)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=1000)
    server.close()
    controller.close()
    heartbeat.close()
    beats.close()


def test_a_process_that_is_stopped_is_overdue_and_learns_when_it_wakes_that_it_was_replaced(loopback: Meeting) -> None:
    controller = loopback.endpoint(CONTROLLER)
    beats = Beats(controller.sockets, timeout_s=0.3)
    told = {
        "credentials": loopback.credentials.to_json(),
        "address": beats.address.to_json(),
        "period_s": PERIOD_S,
    }
    beats.watch(SERVER, grace_s=60)
    process = subprocess.Popen([sys.executable, "-m", "tests.cluster.wire.beating"], stdin=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.close()
        until(lambda: beats.heard(SERVER))
        process.send_signal(signal.SIGSTOP)
        until(beats.overdue)
        assert beats.overdue() == [SERVER]
        beats.forget(SERVER)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        beats.close()
