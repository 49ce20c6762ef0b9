"""Frames and heartbeats between living processes of a job that get lost, as where a connection is reset."""

from __future__ import annotations

import holdfast as hf
from holdfast.cluster.core.members import Member, Role
from tests.cluster.processes.gate import Gate
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.programs import loader_of, pass_gate, take_step

LOST_AT = 3  # the step behind which the last worker misses a frame
_SERVER = Member(Role.SERVER, 0, 1)


def lose_frame_to(job: RunningJob, member: Member) -> None:
    """The next frame that the controller sends a member is the one behind a lost one."""
    job.cluster._endpoint._outbox._lines[member].numbers.number()


def train_and_miss_a_frame(worker: hf.Worker) -> None:
    """As the gate lets pass; the last worker misses a frame of the first server, once in a job."""
    loader = loader_of(worker.index, worker.count)
    pass_gate(worker, loader, lambda worker, batch: (take_step(worker, batch), _miss(worker)))


def train_and_lose_the_controller(worker: hf.Worker) -> None:
    """As the gate lets pass; once in a job, a worker's heartbeats are not answered for a while."""
    loader = loader_of(worker.index, worker.count)
    pass_gate(worker, loader, lambda worker, batch: (take_step(worker, batch), _lose_controller(worker)))


def _lose_controller(worker: hf.Worker) -> None:
    if worker.steps == LOST_AT and _is_first(Gate()):
        heartbeat = worker._sockets._link._heartbeat
        heartbeat.answered = -1_000_000  # until the next answer, which comes soon
        worker._sockets.let_in()


def _miss(worker: hf.Worker) -> None:
    if worker.index == worker.count - 1 and worker.steps == LOST_AT and _is_first(Gate()):
        streams = worker._sockets._link._endpoint._inbox._newest
        incoming = streams[_SERVER.role, _SERVER.index].incoming
        incoming.accept(incoming._expected)


def _is_first(gate: Gate) -> bool:
    try:
        (gate.folder / "missed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
