"""When a job's saves begin."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.losses import Losses
from holdfast.cluster.controller.resume import Beginning
from holdfast.cluster.controller.save_desk import SaveDesk
from holdfast.cluster.controller.timetable import Timetable
from holdfast.cluster.core.controller import ControllerCore
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Loaded, Pause, Send, Standing
from holdfast.cluster.core.notes import Decided, Outcome
from holdfast.cluster.core.progress import BEGINNING
from holdfast.cluster.happenings import Committed, Event
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.keys import Credentials
from holdfast.policy import EverySteps, Overlap
from holdfast.runtime import Runtime


class Desk:
    """The saves of a job of one server and two workers that has just begun, on a clock that is moved."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.now_s = 0.0
        self.told: list[Event] = []
        runtime = Runtime(monotonic_s=lambda: self.now_s, wall_s=lambda: self.now_s)
        self.core = ControllerCore(View.first(servers=1, workers=2))
        self.accounts = Accounts(Losses(None, servers=1), synchronous=False, runtime=runtime)
        self.desk = SaveDesk(
            self.core,
            endpoint,
            self.accounts,
            saves=Timetable(EverySteps(10), 0, runtime),
            between=Timetable(None, 0, runtime),
            beginning=Beginning(term=1),
            synchronous=False,
            overlap=Overlap.SKIP,
            tell=self.told.append,
            runtime=runtime,
        )
        for member in self.core.view.members:
            self.core.up(member)
        self.core.handle(Member(Role.SERVER, 0, 1), Loaded())

    def step(self, worker: int, incarnation: int, steps: int) -> None:
        self.accounts.hear(Member(Role.WORKER, worker, incarnation), json.dumps({"steps": steps}).encode())

    def paused(self) -> list[int]:
        """The workers that are asked to pause now."""
        outputs = self.desk.begin_if_due()
        return [each.to.index for each in outputs if isinstance(each, Send) and isinstance(each.message, Pause)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    endpoint = Endpoint(CONTROLLER, Credentials.make(), "tcp://127.0.0.1:*")
    yield Desk(endpoint)
    endpoint.close()


def test_a_save_waits_for_the_first_step_of_whoever_has_just_begun(desk: Desk) -> None:
    desk.step(0, 1, steps=12)
    assert desk.paused() == []
    desk.step(1, 1, steps=1)
    assert desk.paused() == [0, 1]


def test_a_save_waits_for_a_replacement_in_the_same_way_and_not_for_ever(desk: Desk) -> None:
    desk.step(0, 1, steps=5)
    desk.step(1, 1, steps=4)
    desk.core.died(Member(Role.WORKER, 1, 1))
    desk.step(0, 1, steps=12)
    assert desk.paused() == []  # somebody is missing
    desk.core.up(Member(Role.WORKER, 1, 2))
    desk.core.handle(Member(Role.SERVER, 0, 1), Standing(1, 2, BEGINNING, BEGINNING))
    assert desk.core.is_whole and desk.paused() == []
    desk.now_s += 61
    assert desk.paused() == [0, 1]


def test_what_a_server_0_says_that_was_replaced_is_not_heard(desk: Desk) -> None:
    """Its messages may still be on their way when its death is known, and its agent may commit."""
    dead = desk.desk.server_0
    desk.core.died(dead)
    assert desk.desk.settled(dead, Outcome(1, "s1-t1-abc", "")) == ()
    assert desk.desk.settled(dead, Outcome(1, "", "no space left")) == ()
    assert desk.desk.decided(dead, Decided(1, b"{}", "")) == ()
    assert desk.desk.newest == 0 and not desk.told
    desk.desk.settled(desk.desk.server_0, Outcome(1, "s1-t1-abc", ""))
    assert desk.desk.newest == 1 and [type(each) for each in desk.told] == [Committed]
