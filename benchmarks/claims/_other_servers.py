"""Local processes whose servers run a function of a benchmark's, which then runs the real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.cluster.core.members import Role
from holdfast.cluster.launch.base import Launcher, Tenant
from holdfast.cluster.launch.local import LocalProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherServers(LocalProcesses):
    """Local processes, with servers and spares of another kind.

    Args:
        target: What they run: a function, as ``module:function``.
    """

    target: str

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        """A launcher, to be closed by whoever opened it."""
        launcher: Any = LocalProcesses.open(self, servers=servers, workers=workers, spares=spares)
        start = launcher.start

        def start_other(tenant: Tenant, target: str, payload: bytes) -> None:
            is_server = getattr(tenant, "role", Role.SERVER) is Role.SERVER
            start(tenant, self.target if is_server else target, payload)

        launcher.start = start_other
        return launcher  # type: ignore[no-any-return]
