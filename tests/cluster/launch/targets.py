"""What processes of these tests run: each takes a payload and its surroundings, as the processes of a job do."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.cluster.launch.base import Surroundings


def put(path: Path, **found: Any) -> None:
    """Write a file that whoever waits for it sees whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.rename(path)


def describe(payload: bytes, surroundings: Surroundings) -> None:
    """Say what arrived, into the file that the payload's first line names."""
    seen = Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/environ").read_bytes()
    put(
        Path(payload.partition(b"\n")[0].decode()),
        digest=hashlib.sha256(payload).hexdigest(),
        size_bytes=len(payload),
        host=surroundings.host,
        is_secret=payload[-16:] not in seen,
        arguments=sys.argv,
        directory=os.getcwd(),
        threads=os.environ.get("OMP_NUM_THREADS"),
        has_torch="torch" in sys.modules,
        cores=sorted(os.sched_getaffinity(0)),
    )
    print("described", flush=True)


def serve(payload: bytes, surroundings: Surroundings) -> None:
    """Keep a port until orphaned, then say so."""
    folder = Path(payload.decode())
    with socket.create_server((surroundings.host, 0)) as listening:
        host, port = listening.getsockname()
        put(folder / "up", pid=os.getpid(), port=port, host=host, directory=os.getcwd())
        poller = select.poll()
        poller.register(surroundings.orphaned_fd, select.POLLIN)
        poller.poll()
    put(folder / "orphaned")


def fail(payload: bytes, surroundings: Surroundings) -> None:
    raise ValueError(f"there is no table {payload.decode()}")


def leave(payload: bytes, surroundings: Surroundings) -> None:
    raise SystemExit(int(payload))


def crash(payload: bytes, surroundings: Surroundings) -> None:
    ctypes.string_at(0)


def give_up(payload: bytes, surroundings: Surroundings) -> None:
    print("the disk is full", file=sys.stderr, flush=True)
    os._exit(7)


def have_helpers(payload: bytes, surroundings: Surroundings) -> None:
    """Start a process in this group and one in a session of its own, as an agent has, then wait to be killed."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    helper = subprocess.Popen(command)
    agent = subprocess.Popen(command, start_new_session=True)
    put(Path(payload.decode()) / "up", pid=os.getpid(), helper=helper.pid, agent=agent.pid)
    signal.pause()


def sleep(payload: bytes, surroundings: Surroundings) -> None:
    time.sleep(float(payload))
