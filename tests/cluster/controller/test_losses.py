"""What partial recoveries cost, by equation 3 of CPR."""

from __future__ import annotations

import logging

import pytest

from holdfast.cluster.controller.losses import Cost, Length, Losses
from holdfast.cluster.core.members import Member, Role
from holdfast.policy import PLS

SERVER = Member(Role.SERVER, 1, 2)
OTHER = Member(Role.SERVER, 0, 2)


def length(step: int, samples: float | None = 100_000) -> Length:
    return Length(step=step, samples_per_step=100.0, samples=samples)


def test_a_server_of_four_that_lost_a_tenth_of_the_samples_costs_a_fortieth() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 60)
    assert losses.settle(length(500), workers=2) == []  # the other worker has not turned to this server
    losses.hear(SERVER, 1, 40)
    (loss,) = losses.settle(length(500), workers=2)
    assert (loss.server, loss.cost.steps) == (SERVER, 100)
    assert loss.pls == loss.cost.pls == pytest.approx(0.025)
    assert loss.cost.samples == 10_000
    assert losses.settle(length(500), workers=2) == []


def test_losses_add_up_and_are_stored_and_restored() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 100)
    losses.hear(OTHER, 0, 200)
    assert [each.cost.steps for each in losses.settle(length(500), workers=1)] == [100, 200]
    stored = losses.state(length(500))
    assert stored is not None
    assert stored["pls"] == pytest.approx(0.075)
    assert (stored["failures"], stored["saved_samples"], stored["total_samples"]) == (2, 50_000, 100_000)
    resumed = Losses(PLS(0.2), servers=2, stored=stored)
    resumed.hear(SERVER, 0, 100)
    (loss,) = resumed.settle(length(600), workers=1)
    assert loss.pls == pytest.approx(0.075 + 0.05)


def test_without_a_budget_steps_are_told_and_nothing_is_metered() -> None:
    losses = Losses(None, servers=4)
    losses.hear(SERVER, 0, 100)
    (loss,) = losses.settle(length(500, samples=None), workers=1)
    assert (loss.cost.steps, loss.pls) == (100, None)
    assert losses.state(length(500)) is None


def test_a_loss_waits_until_the_length_of_the_training_is_known() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 100)
    assert losses.settle(length(500, samples=None), workers=1) == []
    assert len(losses.settle(length(500), workers=1)) == 1


def test_what_was_declared_goes_before_what_workers_tell() -> None:
    losses = Losses(PLS(0.1, total_samples=1000, samples_per_step=1), servers=1)
    losses.hear(SERVER, 0, 100)
    (loss,) = losses.settle(Length(step=500, samples_per_step=None, samples=None), workers=1)
    assert loss.pls == pytest.approx(0.1)


def test_going_back_forgets_what_was_lost_after_the_checkpoint() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 100)
    losses.settle(length(500), workers=1)
    losses.saved(3, 500)
    losses.hear(SERVER, 0, 300)
    losses.settle(length(900), workers=1)
    losses.went_back(3)
    stored = losses.state(length(500))
    assert stored is not None and stored["pls"] == pytest.approx(0.025)


def test_a_budget_that_is_nearly_used_up_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(PLS(0.03), servers=4)
    losses.hear(SERVER, 0, 100)
    with caplog.at_level(logging.WARNING, "holdfast"):
        losses.settle(length(500), workers=1)
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


def test_samples_are_told_by_the_number_that_the_portion_is_metered_with() -> None:
    losses = Losses(PLS(0.1, total_samples=6400, samples_per_step=64), servers=4)
    losses.hear(SERVER, 0, 10)
    (loss,) = losses.settle(Length(step=50, samples_per_step=16.0, samples=None), workers=1)
    assert (loss.cost.samples, loss.cost.pls) == (640, pytest.approx(640 / 6400 / 4))
    assert losses.samples_of(5, Length(step=50, samples_per_step=None, samples=None)) == 320


def test_what_a_server_told_that_died_again_is_told_by_its_successor() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 60)
    losses.forget(SERVER)
    assert losses.settle(length(500), workers=2, at_once=True) == []


def test_a_loss_that_nobody_is_left_to_tell_is_what_came_since_the_checkpoint() -> None:
    losses = Losses(PLS(0.1), servers=4, step=460)
    assert losses.since_checkpoint(length(500)) == Cost(steps=40, samples=4000.0, pls=None)


def test_at_the_end_a_loss_is_what_some_workers_have_told() -> None:
    losses = Losses(PLS(0.1), servers=4)
    losses.hear(SERVER, 0, 60)
    assert [each.cost.steps for each in losses.settle(length(500), workers=2, at_once=True)] == [60]
