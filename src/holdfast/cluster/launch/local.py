"""Processes of a job on this machine."""

from __future__ import annotations

import os
import platform
import select
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch import child
from holdfast.cluster.launch.base import CLOSE_S, Death, Launcher, Spare, Tenant, label
from holdfast.cluster.launch.cores import Cores
from holdfast.cluster.launch.local_process import LocalProcess
from holdfast.cluster.launch.threads import HUGE_PAGES, ONE_HEAP, require_threads, thread_settings
from holdfast.errors import ConfigurationError, RunError
from holdfast.policy.arguments import require_count
from holdfast.runtime import SYSTEM, Runtime

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcesses:
    """Runs servers and workers as processes of this machine.

    Args:
        logs: A folder for what processes print, one file each; without one they print where this process does.
        server_threads: How many threads a server computes with. None: as the environment says.
        worker_threads: How many threads a worker computes with. None: as the environment says.
        worker_cores: How many cores each worker has to itself, while servers and their agents share the rest: what
            these do then takes nothing from a worker's step. None: everyone runs on any core.
    """

    logs: str | os.PathLike[str] | None = None
    server_threads: int | None = 1
    worker_threads: int | None = None
    worker_cores: int | None = None

    def __post_init__(self) -> None:
        require_threads(self, self.server_threads, self.worker_threads)
        if self.worker_cores is not None:
            require_count(self, "worker_cores", self.worker_cores)

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        """A launcher, to be closed by whoever opened it.

        Args:
            servers: How many servers there will be; any number fits on this machine.
            workers: How many workers there will be.
            spares: How many processes will wait for somebody's death.
        """
        if self.worker_cores is None:
            return LocalLauncher(self)
        return LocalLauncher(self, Cores(os.sched_getaffinity(0), workers=workers, each=self.worker_cores))


class LocalLauncher:
    """Starts processes of this machine, and hears of their deaths by descriptors: no thread, no polling."""

    _runtime: Runtime = SYSTEM

    def __init__(self, settings: LocalProcesses, cores: Cores | None = None) -> None:
        self._settings = settings
        self._cores = cores
        self._logs = None if settings.logs is None else _folder(Path(settings.logs))
        self._processes: dict[Tenant, LocalProcess] = {}  # whose death was not told
        self._watched: dict[int, LocalProcess] = {}  # by descriptor
        self._epoll = select.epoll()

    @property
    def host(self) -> str:
        return LOOPBACK

    def start(self, tenant: Tenant, target: str, payload: bytes) -> None:
        if self._epoll.closed:
            raise RunError(f"{tenant} cannot be started: the launcher is closed")
        if tenant in self._processes:
            raise RunError(f"{tenant} is running already; give a replacement the next incarnation")
        log = None if self._logs is None else self._logs / f"{label(tenant)}.log"
        job = child.pack(target, self.host, payload)
        try:
            cores = None if self._cores is None else self._cores.of(tenant)
            process = LocalProcess(tenant, job, self._environment(tenant.role), log, cores)
        except OSError as error:
            remedy = "check memory, the limits that `ulimit -a` shows, and the folder for logs"
            raise RunError(f"{tenant} could not be started: {error}; {remedy}") from error
        self._processes[tenant] = process
        for fd in (process.pidfd, process.ending_fd):
            self._watched[fd] = process
            self._epoll.register(fd, select.EPOLLIN)

    def lacks(self, role: Role, count: int) -> str:
        return ""

    def adopt(self, spare: Spare, member: Member) -> None:
        process = self._processes.pop(spare, None)
        if process is not None:
            self._processes[member] = process
            process.tenant = member

    def deaths(self) -> list[Death]:
        return [] if self._epoll.closed else self._bury(timeout_s=0.0)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def kill(self, tenant: Tenant) -> None:
        if tenant in self._processes:
            self._processes[tenant].kill()

    def machines(self, role: Role, count: int) -> list[str]:
        return [platform.node()] * count

    def free_bytes(self) -> Mapping[str, int]:
        free = available_bytes()
        return {} if free is None else {platform.node(): free}

    def domain(self, tenant: Tenant) -> str:
        return platform.node()

    def close(self, *, grace_s: float = CLOSE_S) -> None:
        if self._epoll.closed:
            return
        end_s = self._runtime.monotonic_s() + grace_s
        while self._watched and (left_s := end_s - self._runtime.monotonic_s()) > 0:
            self._bury(timeout_s=left_s)
        for process in self._processes.values():
            process.kill()
        while self._watched:
            self._bury(timeout_s=None)
        self._epoll.close()

    def _bury(self, timeout_s: float | None) -> list[Death]:
        """Deaths are told when processes are being killed; these are let go of when they have ended."""
        deaths = []
        for fd, _ in self._epoll.poll(timeout_s):
            if (process := self._watched.get(fd)) is None:  # it has ended, says the other one
                continue
            has_ended = fd == process.pidfd
            self._unwatch(*((process.pidfd, process.ending_fd) if has_ended else (fd,)))
            was_mourned = process.is_mourned
            death = process.bury() if has_ended else process.mourn()
            if death is not None and not was_mourned:
                del self._processes[process.tenant]
                deaths.append(death)
        return deaths

    def _unwatch(self, *fds: int) -> None:
        for fd in fds:
            if self._watched.pop(fd, None) is not None:
                self._epoll.unregister(fd)

    def _environment(self, role: Role) -> Mapping[str, str]:
        threads = self._settings.server_threads if role is Role.SERVER else self._settings.worker_threads
        heaps = ONE_HEAP if role is Role.SERVER else {}
        return {**HUGE_PAGES, **heaps, **os.environ, **thread_settings(threads)}


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"LocalProcesses: logs must be a folder that can be written to: {error}") from error
    return path.absolute()
