"""The claim about priority policies at a scale that proves nothing but that it measures."""

from __future__ import annotations

import pytest

from benchmarks.claims import priority


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    return {name: float(value) for name, value in priority.run("tiny").figures.items()}


def test_rows_that_are_used_more_move_further(figures: dict[str, float]) -> None:
    assert 0 < figures["access_update_correlation"] <= 1
    assert 0 < figures["most_used_share_of_largest_change"] <= 1


def test_memory_is_what_each_policy_holds_beside_the_weights(figures: dict[str, float]) -> None:
    row_bytes = 4 * priority.DIM
    assert figures["priority_memory_fraction_scar"] == pytest.approx(1, abs=0.01)
    assert figures["priority_memory_fraction_mfu"] == pytest.approx(4 / row_bytes, rel=0.02)
    assert 0 < figures["priority_memory_fraction_ssu"] < figures["priority_memory_fraction_mfu"]
    assert figures["priority_step_us_scar"] < figures["priority_step_us_mfu"]
