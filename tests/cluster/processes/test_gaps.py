"""A frame between two living processes is lost: somebody is replaced, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import holdfast as hf
from holdfast.cluster.controller.crew import FIRST_SPARE
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import Died, Ended, Event, Replaced
from tests.cluster.processes import lossy
from tests.cluster.processes.jobs import RunningJob

SPARE = Member(Role.SERVER, FIRST_SPARE, 1)


def is_reached(job: RunningJob, member: Member) -> bool:
    """Whether the controller has connected to it."""
    return member in job.cluster._endpoint._outbox._lines


def test_a_server_is_replaced_if_one_of_its_frames_does_not_reach_a_worker(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(servers=2, workers=3, train=lossy.train_and_miss_a_frame, limit=lossy.LOST_AT + 2)
    assert job.wait_for(Died).member == Member(Role.SERVER, 0, 1)
    job.wait_for(Replaced)
    job.finish(lossy.LOST_AT + 4)
    assert hf.open_run(job.url).checkpoints()[-1].step == 3 * (lossy.LOST_AT + 4)
    job.assert_nothing_is_left()


@pytest.mark.parametrize("member", [Member(Role.SERVER, 0, 1), Member(Role.WORKER, 0, 1)], ids=str)
def test_a_member_is_replaced_if_a_frame_of_the_controller_does_not_reach_it(
    member: Member, start_job: Callable[..., RunningJob]
) -> None:
    job = start_job(servers=2)
    job.run_to(3)
    lossy.lose_frame_to(job, member)
    assert job.wait_for(Died).member == member
    job.wait_for(Replaced)
    job.finish(6)
    assert hf.open_run(job.url).checkpoints()[-1].step == 6
    job.assert_nothing_is_left()


def test_a_place_is_given_to_another_process_if_the_spare_does_not_hear_of_it(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(servers=2, spares=1)
    job.run_to(3)
    job.until(lambda: is_reached(job, SPARE))
    lossy.lose_frame_to(job, SPARE)
    job.kill("server-1")
    job.wait_for(Replaced)
    job.finish(6)
    assert hf.open_run(job.url).checkpoints()[-1].step == 6
    job.assert_nothing_is_left()


def test_a_spare_that_may_have_missed_its_place_makes_room_for_another(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(servers=2, spares=1)
    job.run_to(1)
    job.until(lambda: is_reached(job, SPARE))
    lossy.lose_frame_to(job, SPARE)
    job.until(lambda: is_reached(job, replace(SPARE, incarnation=2)))
    job.finish(3)
    assert not job.of(Died)
    job.assert_nothing_is_left()


class LosesTheEnd(RunningJob):
    """Its spare is told to end, and does not hear it."""

    def _hear(self, event: Event) -> None:
        if isinstance(event, Ended):
            lossy.lose_frame_to(self, SPARE)
        super()._hear(event)


@pytest.mark.timeout(100)  # otherwise it is waited for for two minutes
def test_the_end_of_a_job_does_not_wait_for_a_process_that_did_not_hear_of_it(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(kind=LosesTheEnd, servers=2, spares=1)
    job.run_to(1)
    job.until(lambda: is_reached(job, SPARE))
    job.finish(3)
    job.assert_nothing_is_left()
