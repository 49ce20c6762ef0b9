"""Memory that a spare holds ready: to take a page for the first time costs more than to read a row into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.checkpoint.shards import reserve_buffer
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.parity_rows import parity_shapes
from holdfast.cluster.parity.payload import Words
from holdfast.cluster.placement import Placement
from holdfast.cluster.server.dense_gather import dense_state_bytes
from holdfast.cluster.server.shards import shards_of
from holdfast.cluster.shard import GroupArrays, Shard
from holdfast.erasure.ring import Ring
from holdfast.errors import ConfigurationError
from holdfast.kernels.records import words_of
from holdfast.policy.optimizer import Optimizer
from holdfast.types import UpdateRule

_SHARE = 2  # of the available memory, at most one part in so many: the dead server's is free only after its death


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """For the rows and parities of any server of a job, and for its saves; every page exists."""

    arrays: Sequence[GroupArrays]
    buffer: FrameBuffer
    parities: Sequence[Words] | None  # all zeros; None: the job has none

    @classmethod
    def for_any(
        cls,
        placement: Placement,
        optimizer: Optimizer,
        dense_optimizer: Optimizer,
        settings: Settings,
        rings: Sequence[Ring] = (),
        *,
        spares: int = 1,
    ) -> Room | None:
        """None where memory is scarce: then it is taken when a place is.

        Args:
            placement: Of the model.
            optimizer: Of tables.
            dense_optimizer: Of dense parameters.
            settings: Of saves.
            rings: Servers that keep parities of each other's rows.
            spares: That may take memory at the same time, each of which sees that of all as free.
        """
        rule = optimizer.rule()
        shapes = _parity_shapes(placement, rings, rule)
        sizes = [(group, max(map(group.size, range(placement.servers)))) for group in placement.groups]
        rows_bytes = 4 * sum(rows * words_of(rule, group.width) for group, rows in sizes)
        needed = 2 * rows_bytes + 4 * sum(rows * words for rows, words in shapes)  # rows, a snapshot of them, parities
        available = available_bytes()
        if available is not None and needed * spares > available // _SHARE:
            return None
        arrays = [GroupArrays.of(rows, group.width, rule) for group, rows in sizes]
        for each in arrays:
            each.weights.fill(0)
        rows = Shard(placement, _largest(placement), optimizer, dense_optimizer, arrays)
        state_bytes = dense_state_bytes(placement.plan, rows.dense.rule)
        try:
            buffer = reserve_buffer(list(shards_of(rows)), state_bytes, settings)
        except ConfigurationError:
            return None
        return cls(arrays=arrays, buffer=buffer, parities=[_blank(shape) for shape in shapes] if rings else None)


def _parity_shapes(placement: Placement, rings: Sequence[Ring], rule: UpdateRule) -> list[tuple[int, int]]:
    """Of each group: the most parities that a server keeps, and how many words each has."""
    layouts = [RingLayout(placement, ring) for ring in rings]
    found = [parity_shapes(layout, server, rule) for layout in layouts for server in layout.ring.servers]
    return [max(shapes) for shapes in zip(*found, strict=True)]


def _blank(shape: tuple[int, int]) -> Words:
    found = np.empty(shape, np.uint32)
    found.fill(0)
    return found


def _largest(placement: Placement) -> int:
    """The server with the most values."""
    values = [sum(group.size(each) * group.width for group in placement.groups) for each in range(placement.servers)]
    return values.index(max(values))
