"""Heartbeats over real sockets, both ways."""

from __future__ import annotations

from holdfast.cluster.core.members import CONTROLLER
from holdfast.cluster.wire.beats import Beats
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


def test_a_heartbeat_does_not_hold_up_the_end_of_its_endpoint(loopback: Meeting) -> None:
    controller, server = loopback.endpoint(CONTROLLER), loopback.endpoint(SERVER)
    beats = Beats(controller.sockets, timeout_s=60)
    heartbeat = Heartbeat(SERVER, server.sockets, beats.address, period_s=1000)
    server.close()
    controller.close()
    heartbeat.close()
    beats.close()
