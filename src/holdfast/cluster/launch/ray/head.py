"""A Ray of a job's own, on this machine, kept by a process of its own.

Ray ends with the process that started it. If that were the controller, its death would end servers before they have
saved. So another process starts Ray, and ends it when the controller is gone and no actor is left.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from holdfast.errors import RunError
from holdfast.runtime import SYSTEM

_BOOT = """
import json, sys
sys.path[:], settings = json.loads(sys.stdin.readline())
from holdfast.cluster.launch.ray import head
head.keep(settings)
"""
_OBJECTS_BYTES = 512 << 20  # payloads pass through it, rows do not
_ORPHANS_S = 600.0
_PAUSE_S = 0.2
_END_S = 30.0


class Head:
    """The process that keeps Ray. Closing its input, which happens when we die, too, tells it to end."""

    def __init__(self, *, cpus: float) -> None:
        """Start it, and return before it is up."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        settings = {"num_cpus": max(cpus, os.cpu_count() or 1)}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended at once: whoever asks for the address learns that
            self._process.stdin.write(json.dumps([sys.path, settings]).encode() + b"\n")
            self._process.stdin.flush()

    def address(self) -> str:
        """Where Ray listens, once it does."""
        assert self._process.stdout is not None
        address = self._process.stdout.readline().decode().strip()
        if not address:
            raise RunError(
                f"Ray did not start on this machine (exit code {self._process.wait()}): see its output above"
            )
        return address

    def close(self) -> None:
        """End Ray."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # Ray ends with it
            self._process.wait()
        self._process.stdout.close()


def keep(settings: dict[str, Any]) -> None:
    """Run Ray until nobody needs it."""
    import ray

    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Ray prints is no address
    ray.init(
        "local",
        include_dashboard=False,
        object_store_memory=_OBJECTS_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        **settings,
    )
    with report:
        report.write(ray.get_runtime_context().gcs_address + "\n")
    sys.stdin.read()
    end_s = SYSTEM.monotonic_s() + _ORPHANS_S
    while ray.util.list_named_actors(all_namespaces=True) and SYSTEM.monotonic_s() < end_s:
        SYSTEM.sleep(_PAUSE_S)
    ray.shutdown()
