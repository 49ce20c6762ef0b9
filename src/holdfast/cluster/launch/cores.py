"""Which cores of this machine a process of a job runs on: workers have some to themselves, servers share the rest."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import Tenant
from holdfast.errors import ConfigurationError


class Cores:
    """A division of a machine's cores.

    Args:
        available: The cores that the job may use, by number.
        workers: How many workers there will be. One that joins later runs where servers do.
        each: How many cores a worker has to itself.
    """

    def __init__(self, available: Collection[int], *, workers: int, each: int) -> None:
        numbers = sorted(available)
        if workers * each >= len(numbers):
            most = (len(numbers) - 1) // workers
            remedy = f"pass worker_cores={most} or less" if most else "leave worker_cores out"
            raise ConfigurationError(
                f"LocalProcesses: {workers} workers with {each} cores each leave none of {len(numbers)} cores to "
                f"servers; {remedy}"
            )
        self._of_workers = [frozenset(numbers[at * each : (at + 1) * each]) for at in range(workers)]
        self._of_servers = frozenset(numbers[workers * each :])

    def of(self, tenant: Tenant) -> frozenset[int]:
        """Those that a process may run on. (Spares wait for the places of servers only.)"""
        if isinstance(tenant, Member) and tenant.role is Role.WORKER and tenant.index < len(self._of_workers):
            return self._of_workers[tenant.index]
        return self._of_servers
