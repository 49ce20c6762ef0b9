"""The protocol's state machines do over sockets what they do in the simulation."""

from __future__ import annotations

from holdfast.cluster.core.members import Member, Role
from tests.cluster.wire.job import Job
from tests.cluster.wire.meeting import Meeting, until

STEPS = 30
SERVER, OTHER = Member(Role.SERVER, 0, 1), Member(Role.SERVER, 1, 1)
WORKER = Member(Role.WORKER, 1, 1)


def trained(job: Job) -> bool:
    job.turn()
    return job.is_done


def pushed(job: Job, number: int) -> bool:
    job.turn()
    return job.nodes[OTHER].shard.applied.count((0, number)) == 1


def test_every_push_is_applied_once_and_in_order_on_a_server_that_lives(meeting: Meeting) -> None:
    job = Job(meeting, steps=STEPS)
    until(lambda: pushed(job, 5))
    job.kill(SERVER)
    until(lambda: pushed(job, 12))
    job.kill(WORKER)
    until(lambda: pushed(job, 18))
    until(lambda: trained(job))
    applied = job.nodes[OTHER].shard.applied
    for worker in (0, 1):
        assert [number for who, number in applied if who == worker] == list(range(1, STEPS + 1))
    replacement = job.nodes[Member(Role.SERVER, 0, 2)].shard.applied
    for worker in (0, 1):
        numbers = [number for who, number in replacement if who == worker]
        assert numbers == list(range(numbers[0], STEPS + 1))
