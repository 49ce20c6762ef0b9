"""The first thing that runs in a local process: takes its path, its target and its payload from whoever started it.

Runs as a file, before Holdfast can be imported: standard library only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

_LENGTH_BYTES = 8
_GONE = "whoever started this process is gone"
_CLONE_FILES = 0x400  # Linux's number for ``unshare``: os.unshare came with Python 3.12


def command(job_fd: int, words_fd: int, held_fd: int, name: str) -> list[str]:
    """What starts a process; ``-P`` keeps the directory of this file off its path."""
    return [sys.executable, "-P", __file__, str(job_fd), str(words_fd), str(held_fd), str(os.getpid()), name]


def pack(target: str, host: str, payload: bytes) -> Sequence[bytes]:
    """What a process needs to know, in pieces: this process's path and arguments among it, as for a spawned one."""
    job = {"target": target, "host": host, "path": sys.path, "arguments": sys.argv}
    header = json.dumps(job).encode()
    return len(header).to_bytes(_LENGTH_BYTES, "little"), header, payload


def main(job_fd: int, words_fd: int, held_fd: int, parent: int) -> None:
    """Run a target; ``words_fd`` takes what it says in the end, ``held_fd`` is open until then."""
    _hold(held_fd)
    with open(words_fd, "w", encoding="utf-8", errors="replace") as words:
        faulthandler.enable(words)
        try:
            _run(job_fd, parent)
        except SystemExit as end:
            words.write("" if end.code in (None, 0) else str(end.code))
            raise
        except BaseException:
            traceback.print_exc(file=words)
            raise
        finally:
            faulthandler.disable()


def _hold(fd: int) -> None:
    """Keep a descriptor open until this process ends, and no longer: whoever has the other end hears of it at once.

    A process that is killed closes its files last, after the milliseconds that it takes to unmap gigabytes. But all of
    its threads end at once, and what only one of them has open is closed with that one. Where a thread may not have
    files of its own, as in some containers, this one has no advantage.
    """
    is_alone: list[bool] = []
    is_ready = threading.Event()

    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # handlers write to files of the others
        is_alone.append(ctypes.CDLL(None).unshare(_CLONE_FILES) == 0)
        if is_alone[0]:
            for each in map(int, os.listdir("/proc/thread-self/fd")):  # copies: others' ends would seem to be open
                if each != fd:
                    with suppress(OSError):  # it was the folder's
                        os.close(each)
        is_ready.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="holdfast-end", daemon=True).start()
    is_ready.wait()
    if is_alone[0]:
        os.close(fd)


def _run(job_fd: int, parent: int) -> None:
    orphaned_fd = _watch(parent)
    with open(job_fd, "rb") as file:
        job, payload = _unpack(file)
    sys.path[:], sys.argv[:] = job["path"], job["arguments"]
    base = importlib.import_module("holdfast.cluster.launch.base")
    functions = importlib.import_module("holdfast.cluster.launch.functions")
    surroundings = base.Surroundings(host=job["host"], orphaned_fd=orphaned_fd)
    functions.load(job["target"])(payload, surroundings)


def _watch(parent: int) -> int:
    """A pidfd of whoever started this process. Unlike a pipe, no copy in a forked process keeps it open."""
    try:
        found = os.pidfd_open(parent)
    except ProcessLookupError:
        raise SystemExit(_GONE) from None
    if os.getppid() != parent:  # the number is another's by now
        raise SystemExit(_GONE)
    return found


def _unpack(file: IO[bytes]) -> tuple[Mapping[str, Any], bytes]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    return json.loads(file.read(length)), file.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
