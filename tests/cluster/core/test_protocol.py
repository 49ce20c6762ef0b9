"""Every push counts once and in order, whoever dies; and each rule of the protocol is seen to matter."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.cluster.core.messages import Message
from holdfast.cluster.core.notes import Note
from holdfast.cluster.core.parity_messages import (
    FallBack,
    Hurry,
    OutOfReach,
    ParityMessage,
    Rebuild,
    Rebuilt,
    Redundant,
)
from tests.cluster.core.rules_of_protocol import PROTOCOL
from tests.cluster.core.simulation import Simulation

OF_PARITY = {*get_args(ParityMessage), Rebuild, FallBack, Hurry, OutOfReach, Rebuilt, Redundant}
SCHEDULES, SCHEDULES_SLOW = 500, 20_000


@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        Simulation(seed).run()


def test_no_message_of_the_protocol_goes_unused() -> None:
    unused = set(get_args(Message)) - set(get_args(Note)) - OF_PARITY
    for seed in range(SCHEDULES):
        (simulation := Simulation(seed)).run()
        unused -= simulation.network.kinds
        if not unused:
            return
    pytest.fail(f"nobody ever got {unused}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_every_push_counts_once_whoever_dies_in_very_many_schedules(part: int) -> None:
    for seed in range(SCHEDULES + part, SCHEDULES + SCHEDULES_SLOW, 4):
        Simulation(seed).run()


RARE = [pytest.mark.slow, pytest.mark.timeout(900)]
EACH = [pytest.param(name, marks=RARE if rule.is_rare else []) for name, rule in PROTOCOL.rules.items()]


@pytest.mark.parametrize("rule", EACH)
def test_the_simulation_finds_out_when_a_rule_is_taken_away(rule: str) -> None:
    assert PROTOCOL.is_ever_missed(rule), f"nobody missed it in {PROTOCOL.enough} schedules"
