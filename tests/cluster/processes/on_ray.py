"""A job whose processes are actors of a Ray that its launcher starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

import holdfast as hf
from holdfast.cluster.launch.base import Launcher, Launching, label
from holdfast.cluster.launch.ray.launcher import RayLauncher
from tests.cluster.processes.jobs import RunningJob


class RayJob(RunningJob):
    """The same, on Ray. Its processes are Ray's, too, which take their time to start on a busy machine."""

    PATIENCE_S = 240.0

    def __init__(self, url: Path, folder: Path, **options: Any) -> None:
        self._ray = Observed()
        super().__init__(url, folder, **options)

    def _launching(self) -> Launching:
        return self._ray

    def find(self, name: str) -> psutil.Process | None:
        """All actors have one name: the launcher knows who is who."""
        found = [pid for member, pid in self._pids().items() if member.rpartition(".")[0] == name]
        assert len(found) < 2, f"{name} is {found}"
        return psutil.Process(found[0]) if found else None

    def doomed(self) -> list[psutil.Process]:
        """Ray itself is left to the launcher: a program that has lost the Ray that it is connected to ends."""
        return [psutil.Process(pid) for pid in self._pids().values() if psutil.pid_exists(pid)]

    def _pids(self) -> dict[str, int]:
        homes = {label(each.tenant): each.home for each in self._ray.handles()}
        return {name: home.result().pid for name, home in homes.items() if home.done() and home.exception() is None}


class Observed:
    """A Ray of the job's own."""

    def __init__(self) -> None:
        self._launchers: list[RayLauncher] = []

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        """Remembers what it opens."""
        launching = hf.Ray(worker_threads=1, show_output=False)
        launcher = launching.open(servers=servers, workers=workers, spares=spares)
        assert isinstance(launcher, RayLauncher)
        self._launchers.append(launcher)
        return launcher

    def handles(self) -> list[Any]:
        """The actors that run now."""
        return [handle for launcher in self._launchers for handle in list(launcher._handles.values())]
