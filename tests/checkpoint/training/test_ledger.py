from __future__ import annotations

import pytest

from holdfast.checkpoint.training.ledger import Ledger


def after(course: str) -> Ledger:
    """The ledger after a course of events: b a batch is taken, s step() is called, | a new loop begins."""
    ledger = Ledger()
    ledger.begin_loop()
    events = {"b": ledger.hand_out, "s": ledger.step, "|": ledger.begin_loop}
    for event in course:
        events[event]()
    return ledger


@pytest.mark.parametrize(
    ("course", "used", "skipped"),
    [
        ("bsbsbs", 3, 0),
        ("bsbsb", 2, 0),
        ("bbsbsbs", 3, 0),
        ("bbbsbsbss", 4, 0),
        ("bbsbsbsbss", 5, 0),
        ("bbbsssbbbsss", 6, 0),
        ("bsbbsbs", 4, 1),
        ("bbsbsbbsbs", 5, 1),
        ("bbbbsbbbbsbbbbs", 12, 9),
        ("bsb|bs", 3, 1),
        ("bbs|bbsbs", 4, 1),
        ("sss", 0, 0),
        ("bssbss", 2, 0),
        ("b" * 70 + "s", 70, 69),
    ],
    ids=[
        "a step for each batch",
        "a batch whose step is still to come",
        "one batch ahead",
        "two ahead, and the end of the data",
        "one ahead to the end",
        "batches taken three at a time, each with its step",
        "a batch is skipped",
        "a batch is skipped by a consumer that reads ahead",
        "one step for four batches",
        "a loop left before the step",
        "a loop left with a batch taken ahead",
        "batches from elsewhere",
        "more steps than batches",
        "nobody reads that far ahead",
    ],
)
def test_a_step_is_for_the_oldest_batch_without_one(course: str, used: int, skipped: int) -> None:
    ledger = after(course)
    assert (ledger.used, ledger.skipped) == (used, skipped)


def test_only_what_an_optimizer_stepped_after_is_in_the_weights() -> None:
    ledger = after("bsbs")
    ledger.complete()
    ledger.hand_out(), ledger.step(), ledger.hand_out()
    assert (ledger.completed, ledger.used, ledger.handed_out) == (2, 3, 4)
    ledger.start(9)
    assert (ledger.completed, ledger.used, ledger.handed_out) == (9, 9, 9)
