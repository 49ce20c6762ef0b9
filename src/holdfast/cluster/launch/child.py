"""The first thing that runs in a local process: takes its path, its target and its payload from whoever started it.

Runs as a file, before Holdfast can be imported: standard library only.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any

_LENGTH_BYTES = 8
_GONE = "whoever started this process is gone"


def command(job_fd: int, words_fd: int, name: str) -> list[str]:
    """What starts a process; ``-P`` keeps the directory of this file off its path."""
    return [sys.executable, "-P", __file__, str(job_fd), str(words_fd), str(os.getpid()), name]


def pack(target: str, host: str, payload: bytes) -> Sequence[bytes]:
    """What a process needs to know, in pieces: this process's path and arguments among it, as for a spawned one."""
    job = {"target": target, "host": host, "path": sys.path, "arguments": sys.argv}
    header = json.dumps(job).encode()
    return len(header).to_bytes(_LENGTH_BYTES, "little"), header, payload


def main(job_fd: int, words_fd: int, parent: int) -> None:
    """Run a target; ``words_fd`` takes what it says in the end."""
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
    main(*map(int, sys.argv[1:4]))
