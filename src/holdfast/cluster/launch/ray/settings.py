"""Processes of a job as actors of Ray: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.cluster.core.members import Role
from holdfast.cluster.launch.base import Launcher
from holdfast.cluster.launch.ray.connection import Connection
from holdfast.cluster.launch.ray.launcher import RayLauncher
from holdfast.cluster.launch.ray.places import Needs, Places, bundle
from holdfast.cluster.launch.threads import HUGE_PAGES, require_threads, thread_settings
from holdfast.policy.arguments import require, require_duration
from holdfast.runtime import SYSTEM

_STRATEGIES: Final = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
_ROLES: Final = (Role.SERVER.value, Role.WORKER.value)
_NEEDS: Final = ("num_cpus", "num_gpus", "memory", "resources")
# Ray would kill agents, which are children of the processes that they write for, in the middle of a commit.
_KEEP_AGENTS: Final = {"RAY_kill_child_processes_on_worker_exit": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """Runs servers and workers as actors of Ray. Needs ``holdfast[ray]``.

    Every machine of a cluster needs Holdfast and what the training imports. If the cluster has other machines than
    this one, the working directory travels there, unless ``runtime_env`` says otherwise.

    Args:
        address: Of a running cluster, or ``"auto"`` on one of its machines. None: the one that this program is
            connected to, or else one of its own on this machine, for as long as the job lasts.
        placement: How processes are divided over machines: ``"SPREAD"``, ``"PACK"``, ``"STRICT_SPREAD"`` (no two on
            one machine) or ``"STRICT_PACK"`` (all on one).
        resources: What each ``"server"`` and ``"worker"`` needs, by ``num_cpus`` (1 unless given), ``num_gpus``,
            ``memory`` in bytes and ``resources`` of the cluster's own naming.
        runtime_env: What Ray prepares for processes, as for ``ray.init``.
        namespace: Where Ray keeps the names of the actors.
        server_threads: How many threads a server computes with. None: as the environment says.
        worker_threads: How many threads a worker computes with. None: as the environment says.
        show_output: Whether what processes print is shown here as well.
        timeout_s: How long to wait until the cluster has room for all processes.
    """

    address: str | None = None
    placement: str = "SPREAD"
    resources: Mapping[str, Needs] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = None
    namespace: str = "holdfast"
    server_threads: int | None = 1
    worker_threads: int | None = None
    show_output: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        is_client = self.address is not None and self.address.startswith("ray://")
        remedy = (
            'of a cluster whose machines can connect to this one, not of a client ("ray://"): start the script there'
        )
        require(not is_client, self, "address", remedy, self.address)
        require(self.address != "local", self, "address", "left out for a Ray of the job's own", self.address)
        require(self.placement in _STRATEGIES, self, "placement", f"one of {', '.join(_STRATEGIES)}", self.placement)
        for role, needs in self.resources.items():
            require(role in _ROLES, self, "resources", "by 'server' or 'worker'", role)
            unknown = next((name for name in needs if name not in _NEEDS), None)
            require(unknown is None, self, f"resources[{role!r}]", f"made of {', '.join(_NEEDS)}", unknown)
            require(bool(bundle(needs)), self, f"resources[{role!r}]", "more than nothing, such as num_cpus=0.1", needs)
        require_threads(self, self.server_threads, self.worker_threads)
        require_duration(self, "timeout_s", self.timeout_s)

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        """Connect, and wait until there is room for everyone; close the launcher in the end.

        Args:
            servers: How many servers there will be.
            workers: How many workers there will be; more may start later, where there is room.
            spares: How many servers will wait for another's death.
        """
        counts = {Role.SERVER: servers + spares, Role.WORKER: workers}
        needs = {role: (count, self.resources.get(role.value, {})) for role, count in counts.items()}
        connection = Connection(
            self.address,
            namespace=self.namespace,
            runtime_env=self.runtime_env,
            cpus=sum(count * bundle(each).get("CPU", 0) for count, each in needs.values()),
            show_output=self.show_output,
        )
        with ExitStack() as undo:
            undo.callback(connection.close)
            name = f"holdfast-{SYSTEM.token()}"
            places = Places(connection.ray, name, needs, self.placement)
            undo.callback(places.close)
            places.wait(self.timeout_s)
            launcher = RayLauncher(
                connection, places, name=name, namespace=self.namespace, environments=self._environments()
            )
            undo.pop_all()
            return launcher

    def _environments(self) -> dict[Role, dict[str, str]]:
        threads = {Role.SERVER: self.server_threads, Role.WORKER: self.worker_threads}
        return {role: {**_KEEP_AGENTS, **HUGE_PAGES, **thread_settings(count)} for role, count in threads.items()}
