"""What runs in an actor's process: one call of the target, on a thread, so that the actor still answers."""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.launch.functions import load
from holdfast.cluster.launch.ray.lifeline import Line, hold
from holdfast.errors import RunError
from holdfast.runtime import SYSTEM

_TAIL = 4000
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What ties an actor to its job."""

    line: Line  # to whoever started it
    name: str  # the actor's; those of one job sort by age
    siblings: str  # how the names of all actors of the job begin
    places: Any  # the placement group that they run in


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an actor is to do."""

    target: str
    payload: bytes = field(repr=False)
    path: tuple[str, ...]
    arguments: tuple[str, ...]
    host: str | None  # to bind to; None: the address of the machine that it runs on


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where an actor runs."""

    node: str
    machine: str  # processes of the same one see each other's numbers
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a target ended."""

    exit_code: int
    last_words: str = ""


def machine() -> str:
    """What tells apart where process numbers mean something else: the boot of a system, and a container on it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")


class Process:
    """An actor that is a process of a job. Ray runs each call on a thread of its own."""

    def __init__(self, label: str, family: Family) -> None:
        self._label = label
        self._running = threading.Lock()
        try:
            self._connection = hold(family.line)
        except OSError as error:
            _give_places_back(family)
            raise RunError(f"no connection to {family.line.host}, where this job was started: {error}") from error
        threading.Thread(target=self._leave, args=(family,), name="holdfast-leave", daemon=True).start()

    def __repr__(self) -> str:
        return self._label  # Ray puts it before the lines that the process prints

    def home(self) -> Home:
        """Where it runs."""
        import ray

        return Home(node=ray.get_runtime_context().get_node_id(), machine=machine(), pid=os.getpid())

    def run(self, job: Job) -> Ending:
        """Run the target; whoever started this process kills it then."""
        with self._running:
            return _ending(job, self._connection.fileno())

    def _leave(self, family: Family) -> None:
        """End by itself where nobody is left to kill it, but not before the target has ended."""
        select.select([self._connection], [], [])
        with self._running:
            _give_places_back(family)
            os._exit(0)


def _ending(job: Job, orphaned_fd: int) -> Ending:
    import ray

    sys.path.extend(each for each in job.path if each not in sys.path and os.path.isdir(each))
    sys.argv[:] = job.arguments
    host = job.host or ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    surroundings = Surroundings(host=host, orphaned_fd=orphaned_fd)
    try:
        load(job.target)(job.payload, surroundings)
    except SystemExit as end:
        return _exit(end.code)
    except BaseException:
        return Ending(exit_code=1, last_words=traceback.format_exc()[-_TAIL:])
    return Ending(exit_code=0)


def _exit(code: object) -> Ending:
    """As Python ends on ``SystemExit``: with a number, or with 1 and words."""
    if code is None or isinstance(code, int):
        return Ending(exit_code=code or 0)
    return Ending(exit_code=1, last_words=str(code)[-_TAIL:])


def _give_places_back(family: Family) -> None:
    """The oldest orphan stays until the others have gone, and removes what they all ran in."""
    import ray

    while True:
        named = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
        others = [each for each in named if each.startswith(family.siblings) and each != family.name]
        if not others:
            break
        if min(others) < family.name:
            return
        SYSTEM.sleep(_PAUSE_S)
    if family.places is not None:
        ray.util.remove_placement_group(family.places)
