"""Any process of a job may be killed or stopped at any step, and what the others hold stays as it is."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

import holdfast as hf
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.struck import EVERY, SERVERS, SETTINGS, Struck, strike_all, strikes


def test_eight_members_are_killed_or_stopped_and_the_rest_stays_bit_for_bit(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(servers=SERVERS, save=hf.EverySteps(EVERY), silence_s=4.0)
    plan = [
        ("server-1", signal.SIGKILL),
        ("worker-0", signal.SIGKILL),
        ("server-0", signal.SIGKILL),
        ("agent-1", signal.SIGKILL),
        ("server-2", signal.SIGSTOP),
        ("agent-0", signal.SIGKILL),
        ("worker-0", signal.SIGSTOP),
    ]
    struck = Struck(job)
    strike_all(struck, plan, random.Random(0))
    struck.strike_in_save(8 * EVERY)
    struck.assert_as_expected(8 * EVERY + 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_five_random_strikes_leave_the_rest_bit_for_bit(seed: int, start_job: Callable[..., RunningJob]) -> None:
    job = start_job(servers=SERVERS, save=hf.EverySteps(EVERY), silence_s=4.0, spares=seed % 2, settings=SETTINGS)
    struck = Struck(job)
    step = strike_all(struck, strikes(seed, 25), random.Random(seed))
    struck.assert_as_expected(step + 2)


@pytest.mark.slow
def test_a_server_that_dies_before_the_new_worker_s_first_pull_keeps_its_saved_dense_part(
    start_job: Callable[..., RunningJob],
) -> None:
    struck = Struck(start_job(servers=SERVERS, save=hf.EverySteps(EVERY)))
    struck.save(EVERY)
    struck.strike("worker-0", signal.SIGKILL)
    struck.strike("server-0", signal.SIGKILL)
    struck.assert_as_expected(EVERY + 2)
