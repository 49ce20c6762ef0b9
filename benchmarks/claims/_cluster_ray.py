"""The servers of a cluster as actors of Ray: the same rows, kernels and gradients, carried by calls of methods."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray

from holdfast.cluster.heap import keep_freed_memory
from holdfast.cluster.payload import Arrays, Floats, FoundRows, Gradients, WantedRows
from holdfast.cluster.placement import ROW_MASK, Keys, Placement
from holdfast.cluster.plan import ModelPlan
from holdfast.cluster.shard import Shard
from holdfast.cluster.train.exchange import Pulled, PushedStep
from holdfast.kernels import optimize
from holdfast.policy.optimizer import Optimizer

MOST_PUSHES = 4  # on their way, as in a cluster
_ENDING_S = 20.0  # that Ray's processes may take to end


class Server:
    """What an actor keeps."""

    def __init__(self, plan: str, servers: int, index: int, optimizer: dict[str, Any], dense: Floats) -> None:
        keep_freed_memory()
        optimize.warm_up()
        policy = Optimizer.from_dict(optimizer)
        self._shard = Shard(Placement(ModelPlan.from_json(plan), servers), index, policy, policy)
        self._shard.start(dense)

    def read(self, *arrays: Any) -> Arrays:
        """Answer a pull."""
        groups = self._shard.groups
        wanted = WantedRows.from_arrays(arrays, len(groups))
        rows = [group.read(each) for group, each in zip(groups, wanted.rows, strict=True)]
        return FoundRows(rows=rows, dense=self._shard.dense.values if wanted.dense else None).to_arrays()

    def apply(self, *arrays: Any) -> None:
        """Apply a push."""
        groups = self._shard.groups
        push = Gradients.from_arrays(arrays, len(groups))
        for group, rows, values in zip(groups, push.rows, push.values, strict=True):
            group.apply(rows, values, lr=push.lr_tables)
        self._shard.dense.apply(push.dense, lr=push.lr_dense)


class RayExchange:
    """Pulls and pushes are calls, waited for as late as in a cluster."""

    def __init__(self, placement: Placement, actors: Sequence[Any]) -> None:
        self._placement = placement
        self._actors = actors
        self._pulls: dict[int, tuple[list[Any], bool]] = {}
        self._pushes: deque[list[Any]] = deque()
        self._pulled = 0

    def pull(self, keys: Sequence[Keys], *, dense: bool = True) -> int:
        """Call."""
        rows = self._by_server(keys)
        calls = [
            actor.read.remote(*WantedRows(rows=each, dense=dense).to_arrays())
            for actor, each in zip(self._actors, rows, strict=True)
        ]
        self._pulled += 1
        self._pulls[self._pulled] = calls, dense
        return self._pulled

    def is_there(self, number: int) -> bool:
        """Ask Ray."""
        calls, _ = self._pulls[number]
        return len(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) == len(calls)

    def let_in(self) -> None:
        """Ray does so by itself."""

    def take(self, number: int) -> Pulled:
        """Wait."""
        calls, dense = self._pulls.pop(number)
        found = [FoundRows.from_arrays(each, dense=dense) for each in ray.get(calls)]
        rows = [np.concatenate([each.rows[at] for each in found]) for at in range(len(self._placement.groups))]
        pieces = [each.dense for each in found if each.dense is not None]
        return Pulled(rows=rows, dense=np.concatenate(pieces) if dense else None)

    def push(self, step: PushedStep) -> None:
        """Call; wait for the push that was made a few steps before."""
        rows, cuts = self._by_server(step.keys), [0] * len(step.keys)
        calls = []
        for actor, mine, piece in zip(self._actors, rows, self._placement.dense, strict=True):
            ends = [start + len(each) for start, each in zip(cuts, mine, strict=True)]
            values = [each[start:end] for each, start, end in zip(step.gradients, cuts, ends, strict=True)]
            cuts = ends
            gradients = Gradients(
                rows=mine,
                values=values,
                dense=step.dense[piece.start : piece.end],
                lr_tables=step.lr_tables,
                lr_dense=step.lr_dense,
            )
            calls.append(actor.apply.remote(*gradients.to_arrays()))
        self._pushes.append(calls)
        if len(self._pushes) > MOST_PUSHES:
            ray.get(self._pushes.popleft())

    def _by_server(self, keys: Sequence[Keys]) -> list[list[Keys]]:
        found = []
        for group, each in zip(self._placement.groups, keys, strict=True):
            found.append(np.split(each & ROW_MASK, group.cuts(each)[1:-1]))
        return [list(each) for each in zip(*found, strict=True)]


@contextmanager
def ray_exchange(placement: Placement, optimizer: Optimizer, dense: Floats) -> Iterator[RayExchange]:
    """A Ray of its own on this machine, with an actor for each server."""
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="hf-ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=placement.servers + 1,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            object_store_memory=2 << 30,
        )
        try:
            actor = ray.remote(num_cpus=1, runtime_env={"env_vars": {"NUMBA_NUM_THREADS": "1"}})(Server)
            plan = placement.plan.to_json()
            actors = [
                actor.remote(plan, placement.servers, index, optimizer.to_dict(), dense)
                for index in range(placement.servers)
            ]
            yield RayExchange(placement, actors)
        finally:
            ray.shutdown()
            _await_end_of_ray(folder)


def _await_end_of_ray(folder: str) -> None:
    """Until none of its processes is left: they would compete with what is measured next."""
    end_s = time.monotonic() + _ENDING_S
    while any(folder in each for each in _command_lines()) and time.monotonic() < end_s:
        time.sleep(0.1)


def _command_lines() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield process.read_bytes().decode(errors="replace")
