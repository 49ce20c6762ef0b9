"""The processes of a job, found as what its controller has started."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import psutil

from holdfast.cluster.controller.crew import FIRST_SPARE

WAIT_S = 90.0
_SPARE = f"server-{FIRST_SPARE}"[:-2]  # their numbers count on from there; a process's name has 15 letters
_LAUNCHED = re.compile(r"launch/child\.py$|launch\.ray import head")  # a member, or the Ray that members are part of


class Watched:
    """Every process that a controller ever started, and the ports that they listened on.

    Args:
        controller: Its process.
    """

    def __init__(self, controller: int) -> None:
        self._parent = psutil.Process(controller)
        self._seen: dict[int, psutil.Process] = {}
        self._killed: set[psutil.Process] = set()  # which may take a while: their death is told when it begins
        self._ports: dict[int, float] = {}  # and when each was last seen to be theirs, since the epoch

    def process(self, name: str) -> psutil.Process:
        """The living process that is in this place: ``server-1``, ``worker-0``."""
        found = self.find(name)
        assert found is not None, f"nobody is {name}"
        return found

    def find(self, name: str) -> psutil.Process | None:
        """The same, or None while nobody is there."""
        found = [each for each in self._living() if _name(each).rpartition(".")[0] == name]
        assert len(found) < 2, f"{name} is {found}"
        return found[0] if found else None

    def spare(self) -> psutil.Process | None:
        """A server that waits for a place, if there is one."""
        return next((each for each in self._living() if _name(each).startswith(_SPARE)), None)

    def agent(self, server: int) -> psutil.Process:
        """The agent of a server."""
        return self.process(f"server-{server}").children()[0]

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> psutil.Process:
        """Send a signal to whoever is in this place."""
        self.look()
        victim = self.process(name)
        self.hit(victim, how)
        return victim

    def hit(self, victim: psutil.Process, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process; one that is killed is nobody from now on."""
        if how == signal.SIGKILL:
            self._killed.add(victim)
        victim.send_signal(how)

    def look(self) -> None:
        """Remember every process and port of the job; the controller may have children that are none of its job."""
        for process in [each for child in self._children() for each in _with_descendants(child)]:
            self._seen.setdefault(process.pid, process)
            with suppress(psutil.Error):
                self._ports.update(dict.fromkeys(_listening(process.net_connections("tcp")), time.time()))

    def assert_nothing_is_left(self) -> None:
        """No process that it started runs any more, and nobody listens on a port of theirs.

        Other programs get ports that are free again: whoever began after a port was last seen to be the job's.
        """
        self.until_gone()
        taken = _listening(psutil.net_connections("tcp"))
        assert self._ports
        assert not {port for port, owner in taken.items() if _began_s(owner) < self._ports.get(port, 0.0)}

    def until_gone(self) -> None:
        """Wait until everyone has ended who was seen."""
        end_s = time.monotonic() + WAIT_S
        while (left := self.left()) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert not left

    def left(self) -> list[psutil.Process]:
        """Those that still run."""
        return [each for each in self._seen.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def _living(self) -> Iterator[psutil.Process]:
        return (each for each in self._children() if each not in self._killed)

    def _children(self) -> Iterator[psutil.Process]:
        for process in self._parent.children():
            with suppress(psutil.Error):
                if any(_LAUNCHED.search(each) for each in process.cmdline()):
                    yield process


def _listening(connections: Iterable[Any]) -> dict[int, int | None]:
    """By port, who listens on it."""
    return {each.laddr.port: getattr(each, "pid", None) for each in connections if each.status == "LISTEN"}


def _began_s(process: int | None) -> float:
    """Since the epoch; 0 where nobody knows."""
    if process is None:
        return 0.0
    try:
        return float(psutil.Process(process).create_time())
    except psutil.NoSuchProcess:  # it has just ended
        return time.time()


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:  # it has just ended
        return ""


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]
