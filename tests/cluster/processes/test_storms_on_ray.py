"""Servers and workers of a protected job on Ray may be killed at any moment, too."""

from __future__ import annotations

import pytest

from tests.cluster.processes.on_ray import RayJob
from tests.cluster.processes.storm import Start, assert_as_undisturbed, assert_counted_once, counted, in_step

pytest.importorskip("ray")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_whose_servers_and_worker_are_killed_on_ray_come_to_what_they_would_have_come_to(
    start_job: Start,
) -> None:
    storm = in_step(start_job, kind=RayJob)
    storm.strike_all(["server-1", "worker-0", "server-0", "server-2", "server-2"])
    assert_as_undisturbed(storm)
    assert storm.rungs.count("parity") >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_push_counts_once_whoever_is_killed_on_ray(start_job: Start) -> None:
    storm = counted(start_job, kind=RayJob)
    storm.strike_all(["server-0", "worker-1", "server-1", "server-2"])
    assert_counted_once(storm)
    assert set(storm.rungs) == {"parity"} and not storm.lost_steps
