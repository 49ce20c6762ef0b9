"""What a server has in one place of the job."""

from __future__ import annotations

from contextlib import closing
from typing import cast

from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.cluster.core.stripes import Layout, Protection, Records
from holdfast.cluster.heap import ready_heap
from holdfast.cluster.job import Job
from holdfast.cluster.link import compute_threads
from holdfast.cluster.parity.layout import BLOCK_BYTES, LARGE_BLOCK_BYTES, RingLayout, block_stripes
from holdfast.cluster.parity.seats import require_memory, rows_bytes, server_bytes
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.placement import Placement
from holdfast.cluster.server.dense_gather import DenseGather
from holdfast.cluster.server.moves import Movers
from holdfast.cluster.server.protected_shard import ProtectedShard
from holdfast.cluster.server.rebuild_pace import FAST_ASKED
from holdfast.cluster.server.room import Room
from holdfast.cluster.server.saves import SavedRows
from holdfast.cluster.server.shard import LiveShard
from holdfast.cluster.server.telling import TOGETHER
from holdfast.cluster.shard import Shard

_HEAP_SHARE = 8  # of the memory that is left, at most one part in so many


class Place:
    """Rows and parities of a server, and its part of the saves, over all its lives.

    Args:
        job: What the process was told.
        index: Of the place.
        room: Memory that the process had ready as a spare.
        movers: Where rows come back fast: threads that move them.
    """

    def __init__(self, job: Job, index: int, room: Room | None, movers: Movers | None) -> None:
        placement = Placement(job.plan, job.servers)
        free_bytes = available_bytes()  # before rows are made, whose pages do not exist until they are written
        rows = Shard(placement, index, job.optimizer, job.dense_optimizer, None if room is None else room.arrays)
        self.dense = DenseGather(job, placement, rows.dense)
        self.saves = SavedRows(job, rows, self.dense, index, None if room is None else room.buffer)
        self.shard = LiveShard(rows, self.saves, job.dense)
        self.protection: Protection | None = None
        if (ring := job.ring_of(index)) is not None:
            block = block_stripes(placement, rows.rule, BLOCK_BYTES if movers is None else LARGE_BLOCK_BYTES)
            parities = None if room is None else room.parities
            layout = RingLayout(placement, ring, block_stripes=block)
            if parities is None:  # else the memory is taken already
                needed_bytes = server_bytes(layout, index, rows.rule, rows.dense.rule)
                if free_bytes is not None and room is None:
                    free_bytes -= rows_bytes(placement, rows.rule, rows.dense.rule)[index]
                require_memory(f"server {index}", needed_bytes, free_bytes)
            parity = ShardParity(layout, rows, parities, threads=compute_threads(job.together))
            shard = ProtectedShard(rows, self.saves, job.dense, parity, movers)
            self.shard = shard
            soon = 0 if movers is None else FAST_ASKED * block
            self.protection = Protection(cast(Layout, layout), cast(Records, shard), TOGETHER, soon)

    def close(self) -> None:
        """Let the agent finish what it has."""
        with closing(self.saves):
            if isinstance(self.shard, ProtectedShard):
                self.shard.close()


def ready_for_blocks(job: Job) -> None:
    """For what is under way while rows come back fast: to this server, or to one that this one helps.

    Never more than a server has rows and parities of, and a small part of the memory that is left.
    """
    placement = Placement(job.plan, job.servers)
    moved_bytes = 2 * max(rows_bytes(placement, job.optimizer.rule(), job.dense_optimizer.rule()))
    free_bytes = available_bytes()
    most_bytes = moved_bytes if free_bytes is None else min(moved_bytes, free_bytes // _HEAP_SHARE)
    ready_heap(min(FAST_ASKED * LARGE_BLOCK_BYTES, most_bytes))
