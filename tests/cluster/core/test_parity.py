"""No row is wrong and every push counts once, whichever servers die; and each rule of parity is seen to matter."""

from __future__ import annotations

import pytest

from tests.cluster.core.parity_simulation import ParitySimulation
from tests.cluster.core.rules_of_parity import PARITY
from tests.cluster.core.test_protocol import OF_PARITY

SCHEDULES, SCHEDULES_SLOW = 500, 20_000


@pytest.mark.parametrize("part", range(4))
def test_no_row_is_wrong_and_every_push_counts_once_whoever_dies(part: int) -> None:
    for seed in range(part, SCHEDULES, 4):
        ParitySimulation(seed).run()


def test_no_message_of_parity_goes_unused() -> None:
    unused = OF_PARITY
    for seed in range(SCHEDULES):
        (simulation := ParitySimulation(seed)).run()
        unused = unused - simulation.network.kinds
        if not unused:
            return
    pytest.fail(f"nobody ever got {unused}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_no_row_is_wrong_in_very_many_schedules(part: int) -> None:
    for seed in range(SCHEDULES + part, SCHEDULES + SCHEDULES_SLOW, 4):
        ParitySimulation(seed).run()


RARE = [pytest.mark.slow, pytest.mark.timeout(900)]
EACH = [pytest.param(name, marks=RARE if rule.is_rare else []) for name, rule in PARITY.rules.items()]


@pytest.mark.parametrize("rule", EACH)
def test_the_simulation_finds_out_when_a_rule_is_taken_away(rule: str) -> None:
    assert PARITY.is_ever_missed(rule), f"nobody missed it in {PARITY.enough} schedules"
