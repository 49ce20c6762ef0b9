"""How a job is connected to Ray: one of its own, an existing cluster, or what the program has connected to before."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from holdfast.cluster.launch.local import LOOPBACK
from holdfast.cluster.launch.ray.head import Head
from holdfast.errors import ConfigurationError, RunError

_REACH_S = 10.0
_AUTH_MODE = "RAY_AUTH_MODE"


class Connection:
    """This process's connection to Ray, with what has to be undone in the end.

    Args:
        address: Of an existing cluster; None: start one on this machine.
        namespace: Where the names of actors live.
        runtime_env: What Ray prepares on each machine.
        cpus: How many of its own cluster's processors the job counts on.
        show_output: Whether what actors print is shown here.
    """

    def __init__(
        self,
        address: str | None,
        *,
        namespace: str,
        runtime_env: Mapping[str, Any] | None,
        cpus: float,
        show_output: bool,
    ) -> None:
        _require_ray()
        _require_reachable(address)
        self._head = Head(cpus=cpus) if address is None and not _is_connected() else None  # it starts while we import
        self._is_ours = False
        try:
            self.ray = _import_ray()
            if self.ray.is_initialized():
                self.actor_env = dict(runtime_env or {})
                return
            self.actor_env = {}  # every actor has the job's
            if self._head is not None:
                address = self._head.address()
                _show_token()
            self._init(address, dict(runtime_env or {}), namespace=namespace, log_to_driver=show_output)
            if runtime_env is None and not self.is_alone and self._has_other_machines():
                # The code that actors import is here; Ray takes it along for a whole connection only.
                self.ray.shutdown()
                self._init(address, {"working_dir": os.getcwd()}, namespace=namespace, log_to_driver=show_output)
        except BaseException:
            self.close()
            raise

    @property
    def host(self) -> str:
        """This machine's address: as the cluster knows it, or loopback where there is no other machine."""
        return LOOPBACK if self.is_alone else str(self.ray.util.get_node_ip_address())

    @property
    def is_alone(self) -> bool:
        """Whether the cluster is the job's own, on this machine."""
        return self._head is not None

    def close(self) -> None:
        """Leave the cluster as it was found."""
        if self._is_ours:
            self._is_ours = False
            with _own_sigterm():
                self.ray.shutdown()
        if self._head is not None:
            self._head.close()
            self._head = None

    def _init(self, address: str | None, runtime_env: dict[str, Any], **options: Any) -> None:
        try:
            with _own_sigterm():
                self.ray.init(address, runtime_env=runtime_env, logging_level=logging.ERROR, **options)
        except (ValueError, TypeError) as error:
            remedy = "change runtime_env, for instance its `excludes`, or the working directory that travels along"
            raise ConfigurationError(f"Ray at {address} refuses this job: {error}; {remedy}") from error
        except Exception as error:
            raise _unreachable(address, error) from error
        self._is_ours = True

    def _has_other_machines(self) -> bool:
        ours = self.ray.util.get_node_ip_address()
        return any(each["Alive"] and each["NodeManagerAddress"] != ours for each in self.ray.nodes())


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError("hf.Ray needs Ray: pip install 'holdfast[ray]'")


def _require_reachable(address: str | None) -> None:
    """Ray tries for minutes to connect to a port that nobody listens on."""
    host, found, port = (address or "").rpartition(":")
    if not found or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> RunError:
    return RunError(
        f"no Ray at {address}: {error}; run this on a machine of the cluster, or leave `address` out. "
        f"A cluster that asks for a token needs {_AUTH_MODE}=token in the environment"
    )


def _import_ray() -> ModuleType:
    import ray
    import ray.util.placement_group
    import ray.util.scheduling_strategies

    return ray


def _show_token() -> None:
    """Be let in by the Ray that we started, which asks for a token unless ``RAY_AUTH_MODE`` says otherwise.

    Ray itself shows one to clusters that it has started or found in this process, never to a given address.
    """
    if _AUTH_MODE in os.environ:
        return
    os.environ[_AUTH_MODE] = "token"  # as Ray does in a process that starts a cluster
    config = getattr(sys.modules["ray._raylet"], "Config", None)  # has read it when Ray was imported
    if config is not None and hasattr(config, "initialize"):  # not in a Ray that knows no tokens
        config.initialize("")


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM over when it connects; what to do about it is the controller's decision."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
