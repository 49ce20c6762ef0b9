"""The agent as its own process; ``start`` launches it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from holdfast.checkpoint.agent.service import Agent
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import Channel, Configure
from holdfast.storage import open_store


def main(arguments: list[str]) -> None:
    """``socket-fd memory-fd frames frame-bytes trainer-pid``."""
    socket_fd, memory_fd, frames, frame_bytes, trainer_pid = map(int, arguments)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the trainer; the agent ends when its work is done
    channel = Channel(socket.socket(fileno=socket_fd))
    trainer = _watch(trainer_pid)
    config = channel.receive(None)
    if not isinstance(config, Configure):
        raise SystemExit("holdfast agent: the trainer sent no configuration")
    _step_back(config.niceness)
    opened = open_store(config.url, options=config.options, patience_s=config.retry_s)
    store = patient_store(opened, retry_s=config.retry_s, grace_s=config.grace_s)
    buffer = FrameBuffer(memory_fd, frames=frames, frame_bytes=frame_bytes)
    Agent(channel, store, buffer, config).run(trainer)


def _watch(pid: int) -> int | None:
    """A pidfd of the trainer; None where it is gone already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _step_back(niceness: int) -> None:
    """Let the trainer go first."""
    priority = os.nice(niceness)
    # Linux may share the CPU by sessions (autogroup): then niceness counts within a session, and ours is our own.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(priority))
    # Batch work shares the CPU like any other, but does not interrupt who runs: the trainer that has just woken us.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
