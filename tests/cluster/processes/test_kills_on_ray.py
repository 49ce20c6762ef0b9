"""Any process of a job on Ray may be killed or stopped, and what the others hold stays as it is."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

import holdfast as hf
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.on_ray import RayJob
from tests.cluster.processes.struck import EVERY, SETTINGS, Struck, strike_all, strikes

pytest.importorskip("ray")

SERVERS = 2


def start_on_ray(start_job: Callable[..., RunningJob], **options: object) -> Struck:
    job = start_job(
        kind=RayJob, servers=SERVERS, save=hf.EverySteps(EVERY), silence_s=4.0, settings=SETTINGS, **options
    )
    return Struck(job, servers=SERVERS)


@pytest.mark.timeout(600)
def test_members_that_are_killed_or_stopped_on_ray_leave_the_rest_bit_for_bit(
    start_job: Callable[..., RunningJob],
) -> None:
    plan = [("server-1", signal.SIGKILL), ("agent-0", signal.SIGKILL), ("worker-0", signal.SIGSTOP)]
    struck = start_on_ray(start_job)
    struck.assert_as_expected(strike_all(struck, plan, random.Random(0)) + 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_random_strikes_on_ray_leave_the_rest_bit_for_bit(start_job: Callable[..., RunningJob]) -> None:
    struck = start_on_ray(start_job, spares=1)
    struck.assert_as_expected(strike_all(struck, strikes(3, 10, servers=SERVERS), random.Random(3)) + 2)
