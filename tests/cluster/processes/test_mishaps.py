"""Deaths that parity alone cannot make up for, or that come while it does: never a wrong row, and the rung is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from tests.cluster.processes import tally
from tests.cluster.processes.storm import (
    Start,
    Storm,
    assert_as_undisturbed,
    assert_counted_once,
    assert_sound,
    counted,
    in_step,
)


def spare_dies(storm: Storm) -> None:
    """Before it is needed."""
    storm.kill_spare()
    storm.strike("server-1")


def new_server_dies(storm: Storm) -> None:
    """Before it has its rows."""
    storm.strike("server-1")
    storm.kill_in_recovery("server-1")


def host_dies(storm: Storm) -> None:
    """While it decodes another's rows."""
    storm.strike("server-1")
    storm.kill_in_recovery("server-2")


def worker_dies_with_server(storm: Storm) -> None:
    storm.strike("server-0", "worker-0")


def worker_dies_in_recovery(storm: Storm) -> None:
    storm.strike("server-2")
    storm.kill_in_recovery("worker-1")


def two_servers_die(storm: Storm) -> None:
    storm.strike("server-0", "server-2")


def all_servers_die(storm: Storm) -> None:
    storm.strike("server-0", "server-1", "server-2")


Mishap = Callable[[Storm], None]
HARMLESS: tuple[Mishap, ...] = (
    spare_dies, new_server_dies, worker_dies_with_server, worker_dies_in_recovery
)  # fmt: skip
COSTLY: tuple[Mishap, ...] = (host_dies, two_servers_die, all_servers_die)


def befall(storm: Storm, mishaps: tuple[Mishap, ...], times: int) -> None:
    """One after another, each when all is protected, so many times."""
    for mishap in mishaps * times:
        storm.settle()
        mishap(storm)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_mishap_changes_what_steps_come_to(start_job: Start) -> None:
    storm = in_step(start_job, workers=2, seed=3)
    befall(storm, (*HARMLESS, *COSTLY), times=3)
    assert_as_undisturbed(storm)
    assert {"parity", "full"} <= set(storm.rungs) and storm.has_gone_back


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_push_counts_once_where_parity_has_every_row(start_job: Start) -> None:
    storm = counted(start_job, seed=4)
    befall(storm, HARMLESS, times=4)
    assert_counted_once(storm)
    assert set(storm.rungs) == {"parity"} and not storm.lost_steps


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_push_counts_twice_where_rows_come_from_saves(start_job: Start) -> None:
    storm = counted(start_job, seed=5)
    befall(storm, (*COSTLY, *HARMLESS), times=2)
    epochs = storm.finish_epoch()
    counts = tally.rows_counted(storm.job.url, storm.recipe)
    assert max(counts) <= epochs and all(each.is_integer() for each in counts)
    assert max(tally.pushes_counted(storm.job.url, storm.recipe)) <= epochs * tally.EPOCH * tally.WORKERS
    assert {"parity", "partial"} <= set(storm.rungs) and storm.lost_steps > 0
    assert_sound(storm)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("synchronous", [False, True], ids=["counted", "in step"])
def test_two_parities_make_up_for_two_servers_at_once_and_for_one_in_the_recovery_of_another(
    start_job: Start, synchronous: bool
) -> None:
    settings = {"servers": 4, "parity": hf.Parity(data=2, parity=2, domain="process", rebuild="fast"), "spares": 2}
    storm = (in_step if synchronous else counted)(start_job, seed=6, **settings)
    befall(storm, (two_servers_die, new_server_dies, host_dies), times=4)
    (assert_as_undisturbed if synchronous else assert_counted_once)(storm)
    assert set(storm.rungs) == {"parity"} and not storm.lost_steps and not storm.has_gone_back
