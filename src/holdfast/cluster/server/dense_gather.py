"""The dense parameters of all servers, gathered on server 0: a checkpoint holds them as one model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.cluster.core.progress import Progress
from holdfast.cluster.job import Job
from holdfast.cluster.payload import Arrays
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import ModelPlan
from holdfast.cluster.saved import dense_arrays, joined, training_tree
from holdfast.cluster.shard import DenseShard
from holdfast.types import UpdateRule


class DenseGather:
    """Takes the other servers' parts in. Workers wait while a save is copied, so that all parts are of one moment.

    Args:
        job: What the process was told.
        placement: Of the model.
        own: This server's part.
    """

    def __init__(self, job: Job, placement: Placement, own: DenseShard) -> None:
        self._job = job
        self._placement = placement
        self._own = own
        self._save = 0  # that the parts belong to
        self._parts: dict[int, Arrays] = {}  # by server

    @property
    def own(self) -> Arrays:
        """This server's part, to be sent to server 0."""
        return dense_arrays(self._own)

    @property
    def state_bytes(self) -> int:
        """About how much all of it takes in a checkpoint."""
        return dense_state_bytes(self._job.plan, self._own.rule)

    def take(self, save: int, server: int, part: Arrays) -> None:
        """What another server has. Parts of a save that was called off may come after those of a later one."""
        if save > self._save:
            self._save, self._parts = save, {}
        if save == self._save:
            self._parts[server] = part

    def is_whole(self, save: int) -> bool:
        """Whether all other servers have sent theirs."""
        return self._job.servers == 1 or (save == self._save and len(self._parts) == self._job.servers - 1)

    def clear(self) -> None:
        """The save was called off."""
        self._parts = {}

    def training(self, progress: Mapping[int, Progress]) -> dict[str, Any]:
        """The state of the training, for the first part of a checkpoint; what was gathered is gone then."""
        parts, self._parts = self._parts, {}
        pieces = [self.own, *(parts[server] for server in range(1, self._job.servers))]
        return training_tree(
            self._placement,
            joined(self._placement, self._own.rule, pieces),
            progress,
            optimizer=self._job.optimizer,
            dense_optimizer=self._job.dense_optimizer,
        )


def dense_state_bytes(plan: ModelPlan, rule: UpdateRule) -> int:
    """About how much the dense parts of all servers take in a checkpoint."""
    values = 1 + sum(not slot.single for slot in rule.slots)
    return int(4 * values * plan.dense_size) + np.dtype(np.int64).itemsize
