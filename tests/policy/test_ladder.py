"""The ladder: its rungs, and how far a job has to climb down."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.policy import Policy
from holdfast.policy.ladder import FULL, PARITY, PARTIAL, Fall
from holdfast.policy.pls import PlsMeter

WHOLE = hf.Ladder(parity=hf.Parity(data=4, parity=1), partial=True, budget=hf.PLS(0.1))


def test_rungs_are_in_order_and_the_last_one_is_always_there() -> None:
    assert WHOLE.rungs == (PARITY, PARTIAL, FULL)
    assert hf.Ladder().rungs == (FULL,)
    assert str(WHOLE) == "parity (4 + 1) → partial (PLS up to 0.1) → full"
    assert Policy.from_dict(WHOLE.to_dict()) == WHOLE


def test_a_strategy_of_partial_recovery_stands_for_the_second_rung() -> None:
    strategy = hf.Partial(priority=hf.SSU(), consistent=hf.Grid(), budget=hf.PLS(0.1))
    ladder = hf.Ladder.of(None, strategy)
    assert ladder == hf.Ladder(partial=True, budget=hf.PLS(0.1), priority=hf.SSU())
    assert ladder.strategy(hf.Grid()) == strategy
    assert hf.Ladder.of(hf.Parity(), hf.Grid()) == hf.Ladder(parity=hf.Parity())
    assert hf.Ladder().strategy(hf.Grid()) == hf.Grid()


def fall(samples: int, *, pls: float = 0.0, lost_share: float = 0.25, **more: bool) -> Fall:
    meter = PlsMeter(total_samples=1000, saved_samples=100, pls=pls, budget=0.1)
    return Fall(lost_share=lost_share, samples=samples, meter=meter, **more)


def test_what_the_budget_does_not_allow_falls_to_the_last_rung() -> None:
    assert WHOLE.below_parity(fall(500)) == PARTIAL  # a quarter of 400 in 1000: 0.1
    assert WHOLE.below_parity(fall(501)) == FULL
    assert WHOLE.below_parity(fall(500, pls=0.01)) == FULL
    assert WHOLE.below_parity(fall(500, lost_share=0.5)) == FULL
    assert WHOLE.below_parity(fall(100, pls=0.1)) == PARTIAL  # nothing was trained since the save


def test_saves_of_steps_that_are_taken_again_are_not_gone_on_from() -> None:
    assert WHOLE.below_parity(fall(200, saves_are_current=False)) == FULL


def test_without_a_meter_nothing_is_too_much_and_without_the_rung_everything_is() -> None:
    assert WHOLE.below_parity(Fall(lost_share=1.0, samples=10**9)) == PARTIAL
    assert hf.Ladder(parity=hf.Parity()).below_parity(fall(101)) == FULL


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"parity": 4}, r"parity must be a parity such as Parity\(data=4, parity=1\), or None, got 4"),
        ({"partial": "yes"}, "partial must be True or False"),
        ({"partial": True, "budget": 0.1}, r"budget must be a budget such as PLS\(0.1\), or None, got 0.1"),
        ({"priority": hf.SSU()}, r"priority=SSU\(.*\) is for partial recoveries, .* leave the priority out"),
        ({"budget": hf.PLS(0.1)}, "is for partial recoveries, and partial is False; pass partial=True"),
        ({"partial": True, "priority": "mfu"}, "priority must be SCAR, MFU, SSU or None"),
    ],
)
def test_a_ladder_that_cannot_be_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        hf.Ladder(**arguments)  # type: ignore[arg-type]
