"""Starts processes as Ray's actors, and hears of their deaths from Ray."""

from __future__ import annotations

import select
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from typing import Any

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.launch.base import CLOSE_S, Death, Spare, Tenant, label
from holdfast.cluster.launch.ray.actor import Family, Job, Process
from holdfast.cluster.launch.ray.connection import Connection
from holdfast.cluster.launch.ray.handle import Handle
from holdfast.cluster.launch.ray.lifeline import Lifeline
from holdfast.cluster.launch.ray.mailbox import Mailbox
from holdfast.cluster.launch.ray.places import Place, Places
from holdfast.errors import RunError
from holdfast.runtime import SYSTEM, Runtime

_CALLS = 4  # at once: the target's, which lasts as long as the actor, and short ones
_KILL_S = 10.0


class RayLauncher:
    """Starts the actors of one job. What Ray reports arrives on its threads, and is handled on the caller's."""

    _runtime: Runtime = SYSTEM

    def __init__(
        self,
        connection: Connection,
        places: Places,
        *,
        name: str,
        namespace: str,
        environments: Mapping[Role, Mapping[str, str]],
    ) -> None:
        self._connection, self._places = connection, places
        self._name, self._namespace = name, namespace
        self._environments = environments
        self._actors = connection.ray.remote(Process)
        self._numbers = count(1)
        self._handles: dict[Tenant, Handle] = {}
        self._domains: dict[Tenant, str] = {}  # of those that are gone
        self._mailbox: Mailbox[Handle] = Mailbox()
        self._lifeline = Lifeline(connection.host)

    @property
    def host(self) -> str:
        return self._connection.host

    def start(self, tenant: Tenant, target: str, payload: bytes) -> None:
        if self._mailbox.is_closed:
            raise RunError(f"{tenant} cannot be started: the launcher is closed")
        if tenant in self._handles:
            raise RunError(f"{tenant} is running already; give a replacement the next incarnation")
        ray, name = self._connection.ray, f"{self._name}-{next(self._numbers):06}-{label(tenant)}"
        place = self._places.take(tenant.role) or self._inherited(tenant)
        family = Family(line=self._lifeline.line, name=name, siblings=f"{self._name}-", places=self._places.group)
        try:
            actor = self._actors.options(**self._options(name, tenant.role, place)).remote(label(tenant), family)
            handle = Handle(tenant, actor, place, ray=ray, job=self._job(target, payload), mailbox=self._mailbox)
        except Exception as error:
            self._places.give_back(place)
            raise RunError(f"Ray could not start {tenant}: {error}; see `resources` and `runtime_env`") from error
        self._handles[tenant] = handle

    def lacks(self, role: Role, count: int) -> str:
        return self._places.lacks(role, count)

    def adopt(self, spare: Spare, member: Member) -> None:
        handle = self._handles.pop(spare, None)
        if handle is not None:
            handle.tenant = member
            self._handles[member] = handle

    def deaths(self) -> list[Death]:
        return [self._bury(handle) for handle in self._mailbox.take()]

    def fileno(self) -> int:
        return self._mailbox.fileno()

    def kill(self, tenant: Tenant) -> None:
        if tenant in self._handles:
            self._handles[tenant].kill()

    def machines(self, role: Role, count: int) -> list[str]:
        return self._places.nodes(role, count)

    def free_bytes(self) -> Mapping[str, int]:
        return self._places.memory()

    def domain(self, tenant: Tenant) -> str:
        if tenant in self._domains:
            return self._domains[tenant]
        if tenant not in self._handles:
            raise RunError(f"{tenant} was not started, or died before it ran anywhere")
        try:
            return self._handles[tenant].home.result().node
        except self._connection.ray.exceptions.RayError as error:
            raise RunError(f"{tenant} died before it ran anywhere: {error}") from error

    def close(self, *, grace_s: float = CLOSE_S) -> None:
        if self._mailbox.is_closed:
            return
        with ExitStack() as everything:  # in the other order, and all of it whatever fails
            everything.callback(self._connection.close)
            everything.callback(self._places.close)
            everything.callback(self._lifeline.close)
            everything.callback(self._mailbox.close)
            self._wait(grace_s)
            for handle in self._handles.values():
                handle.kill()
            self._wait(_KILL_S)

    def _wait(self, timeout_s: float) -> None:
        """Until nobody is left."""
        poller = select.poll()  # not select(), which knows no descriptor above 1023
        poller.register(self._mailbox, select.POLLIN)
        end_s = self._runtime.monotonic_s() + timeout_s
        while self._handles and (left_s := end_s - self._runtime.monotonic_s()) > 0:
            if poller.poll(left_s * 1000):
                self.deaths()

    def _bury(self, handle: Handle) -> Death:
        del self._handles[handle.tenant]
        self._places.give_back(handle.place)
        if handle.home.done() and handle.home.exception() is None:
            self._domains[handle.tenant] = handle.home.result().node
        return handle.bury()

    def _inherited(self, tenant: Tenant) -> Place | None:
        """The room of a predecessor that is about to be killed; Ray starts the new one there when the old one is dead.

        There may be no other: the job's own cluster has as much as its processes need.
        """
        for handle in self._handles.values():
            if handle.place is not None and _succeeds(tenant, handle.tenant):
                place, handle.place = handle.place, None
                return place
        return None

    def _job(self, target: str, payload: bytes) -> Job:
        host = self.host if self._connection.is_alone else None
        return Job(target=target, payload=payload, path=tuple(sys.path), arguments=tuple(sys.argv), host=host)

    def _options(self, name: str, role: Role, place: Any) -> dict[str, Any]:
        """Detached: it outlives us, if it has something to save."""
        env = self._connection.actor_env
        variables = {**env.get("env_vars", {}), **self._environments[role]}
        return {
            **self._places.options(role, place),
            "name": name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_concurrency": _CALLS,
            "runtime_env": {**env, "env_vars": variables},
        }


def _succeeds(tenant: Tenant, other: Tenant) -> bool:
    if not (isinstance(tenant, Member) and isinstance(other, Member)):
        return False
    return (tenant.role, tenant.index) == (other.role, other.index)
