"""The protocol on real arrays: whoever dies, rows and parities are right to the bit, and every push counts once."""

from __future__ import annotations

import pytest

from tests.cluster.parity.array_simulation import ArraySimulation

SCHEDULES, SCHEDULES_SLOW = 8, 400


def test_no_row_or_parity_in_arrays_is_wrong_whoever_dies() -> None:
    for seed in range(SCHEDULES):
        ArraySimulation(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_row_or_parity_in_arrays_is_wrong_in_many_schedules() -> None:
    for seed in range(SCHEDULES, SCHEDULES + SCHEDULES_SLOW):
        ArraySimulation(seed).run()
