"""Memory that a spare holds ready: to take a page for the first time costs more than to read a row into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.shards import reserve_buffer
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.cluster.placement import Placement
from holdfast.cluster.server.dense_gather import dense_state_bytes
from holdfast.cluster.server.shards import shards_of
from holdfast.cluster.shard import GroupArrays, Shard
from holdfast.errors import ConfigurationError
from holdfast.kernels.records import words_of
from holdfast.policy.optimizer import Optimizer

_SHARE = 2  # of the available memory, at most one part in so many: the dead server's is free only after its death


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """For the rows of any server of a job, and for its saves; every page exists."""

    arrays: Sequence[GroupArrays]
    buffer: FrameBuffer

    @classmethod
    def for_any(
        cls, placement: Placement, optimizer: Optimizer, dense_optimizer: Optimizer, settings: Settings
    ) -> Room | None:
        """None where memory is scarce: then it is taken when a place is.

        Args:
            placement: Of the model.
            optimizer: Of tables.
            dense_optimizer: Of dense parameters.
            settings: Of saves.
        """
        rule = optimizer.rule()
        sizes = [(group, max(map(group.size, range(placement.servers)))) for group in placement.groups]
        rows_bytes = 4 * sum(rows * words_of(rule, group.width) for group, rows in sizes)
        available = available_bytes()
        if available is not None and 2 * rows_bytes > available // _SHARE:  # the rows, and a snapshot of them
            return None
        arrays = [GroupArrays.of(rows, group.width, rule) for group, rows in sizes]
        for each in arrays:
            each.weights.fill(0)
        rows = Shard(placement, _largest(placement), optimizer, dense_optimizer, arrays)
        state_bytes = dense_state_bytes(placement.plan, rows.dense.rule)
        try:
            return cls(arrays=arrays, buffer=reserve_buffer(list(shards_of(rows)), state_bytes, settings))
        except ConfigurationError:
            return None


def _largest(placement: Placement) -> int:
    """The server with the most values."""
    values = [sum(group.size(each) * group.width for group in placement.groups) for each in range(placement.servers)]
    return values.index(max(values))
