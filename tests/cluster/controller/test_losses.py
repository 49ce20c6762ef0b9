"""What partial recoveries cost, by equation 3 of CPR."""

from __future__ import annotations

import logging

import pytest

from holdfast.cluster.controller.losses import Length, Losses
from holdfast.cluster.core.members import Member, Role
from holdfast.policy import PLS

SERVER = Member(Role.SERVER, 1, 2)
OTHER = Member(Role.SERVER, 0, 2)


def length(step: int, samples: float | None = 100_000) -> Length:
    return Length(step=step, samples_per_step=100.0, samples=samples)


def test_a_server_of_four_that_lost_a_tenth_of_the_samples_costs_a_fortieth() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 60, 0.0)
    losses.hear(SERVER, 40, 0.5)  # of the other worker
    assert losses.settle(0.9, length(500)) == []  # another worker may have something to tell
    (loss,) = losses.settle(1.0, length(500))
    assert (loss.server, loss.cost.steps) == (SERVER, 100)
    assert loss.pls == loss.cost.pls == pytest.approx(0.025)
    assert loss.cost.samples == 10_000
    assert losses.settle(9.0, length(500)) == []


def test_losses_add_up_and_are_stored_and_restored() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 100, 0.0)
    losses.hear(OTHER, 200, 0.0)
    assert [each.cost.steps for each in losses.settle(0.0, length(500), at_once=True)] == [100, 200]
    stored = losses.state(length(500))
    assert stored is not None
    assert stored["pls"] == pytest.approx(0.075)
    assert (stored["failures"], stored["saved_samples"], stored["total_samples"]) == (2, 50_000, 100_000)
    resumed = Losses(PLS(0.2), servers=2, stored=stored)
    resumed.hear(SERVER, 100, 0.0)
    (loss,) = resumed.settle(0.0, length(600), at_once=True)
    assert loss.pls == pytest.approx(0.075 + 0.05)


def test_without_a_budget_steps_are_told_and_nothing_is_metered() -> None:
    losses = Losses(None, servers=4)
    losses.hear(SERVER, 100, 0.0)
    (loss,) = losses.settle(0.0, length(500, samples=None), at_once=True)
    assert (loss.cost.steps, loss.pls) == (100, None)
    assert losses.state(length(500)) is None


def test_a_loss_waits_until_the_length_of_the_training_is_known() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 100, 0.0)
    assert losses.settle(5.0, length(500, samples=None)) == []
    assert len(losses.settle(6.0, length(500))) == 1


def test_what_was_declared_goes_before_what_workers_tell() -> None:
    losses = Losses(PLS(0.1, total_samples=1000, samples_per_step=1), servers=1)
    losses.hear(SERVER, 100, 0.0)
    (loss,) = losses.settle(1.0, Length(step=500, samples_per_step=None, samples=None))
    assert loss.pls == pytest.approx(0.1)


def test_going_back_forgets_what_was_lost_after_the_checkpoint() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 100, 0.0)
    losses.settle(0.0, length(500), at_once=True)
    losses.saved(3, 500)
    losses.hear(SERVER, 300, 1.0)
    losses.settle(1.0, length(900), at_once=True)
    losses.went_back(3)
    stored = losses.state(length(500))
    assert stored is not None and stored["pls"] == pytest.approx(0.025)


def test_a_budget_that_is_nearly_used_up_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(PLS(0.03), servers=4)
    losses.hear(SERVER, 100, 0.0)
    with caplog.at_level(logging.WARNING, "holdfast"):
        losses.settle(1.0, length(500))
    assert "the PLS budget of 0.03 is 83% used" in caplog.text


def test_what_a_death_would_lose_counts_from_the_newest_checkpoint() -> None:
    losses = Losses(PLS(0.1), servers=4, step=100)
    fall = losses.fall(2, length(500))
    assert fall.meter is not None
    assert (fall.lost_share, fall.samples, fall.meter.saved_samples) == (0.5, 50_000, 10_000)
    losses.saved(3, 400)
    assert losses.fall(2, length(500)) == fall  # it may still fail
    losses.committed(3)
    fall = losses.fall(9, length(500))
    assert fall.meter is not None and (fall.lost_share, fall.meter.saved_samples) == (1.0, 40_000)
    assert Losses(None, servers=4).fall(1, length(500)).meter is None


def test_saves_are_of_another_timeline_from_a_going_back_to_the_next_checkpoint() -> None:
    losses = Losses(PLS(0.1), servers=4)
    assert losses.fall(1, length(500)).saves_are_current
    losses.went_back(0)
    assert not losses.fall(1, length(100)).saves_are_current
    losses.saved(4, 100)
    losses.committed(4)
    assert losses.fall(1, length(100)).saves_are_current
