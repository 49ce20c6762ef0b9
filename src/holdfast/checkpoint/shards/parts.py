"""Builds the parts of a ShardWriter, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.shards.chooser import ShardChooser
from holdfast.checkpoint.shards.run import ShardedRun
from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.shards.tracker import ShardTracker
from holdfast.checkpoint.snapshot.array_filler import ArrayFiller
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.checkpoint.trainer.buffer_size import frames_for
from holdfast.checkpoint.trainer.fence import Fence
from holdfast.checkpoint.trainer.handover import Handover
from holdfast.checkpoint.trainer.launcher import Launcher, configuration
from holdfast.checkpoint.trainer.liveness import Limits
from holdfast.checkpoint.trainer.outcomes import Outcomes, Tell
from holdfast.checkpoint.trainer.policies import Policies, as_policies, require_known_tables
from holdfast.checkpoint.trainer.save_plan import SavePlanner
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.policy import Exact, Grid, KeepLast, Never, Overlap, Precision, Retention, Strategy
from holdfast.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicies:
    """How saves are made; when, whoever calls ``intend`` decides.

    Args:
        strategy: As for a Checkpointer, ``Partial`` included. None: the one that fits the retention.
        precision: How precisely rows are stored.
        retention: Which checkpoints are kept.
        overlap: What to do when a save is due while another one is in progress.
    """

    strategy: Strategy | None = None
    precision: Precision = Exact()  # noqa: RUF009 - frozen
    retention: Retention = KeepLast(1)  # noqa: RUF009
    overlap: Overlap = Overlap.SKIP

    def checked(self) -> Policies:
        """As all parts of a writer use them."""
        return as_policies(
            save=Never(),
            strategy=self.strategy,
            precision=self.precision,
            retention=self.retention,
            overlap=self.overlap,
        )


class WriterParts:
    """What all parts of a writer share, and how each is built from it."""

    def __init__(
        self,
        run: ShardedRun,
        shards: Sequence[Shard],
        tracker: ShardTracker,
        policies: SavePolicies,
        settings: Settings,
        part: int,
        parts: int,
        buffer: FrameBuffer,
        runtime: Runtime,
    ) -> None:
        self.policies = policies.checked()
        self._tables = [shard.table for shard in shards]
        require_known_tables(self.policies.precision, self._tables)
        self._run = run
        self._tracker = tracker
        self._settings = settings
        self._part = part
        self._parts = parts
        self._runtime = runtime
        priority = self.policies.priority
        self.chooser = ShardChooser(priority, shards, tracker) if priority is not None else None
        self.buffer = buffer

    def planner(self) -> SavePlanner:
        """Decides what a save is."""
        return SavePlanner(
            strategy=self.policies.strategy,
            precision=self.policies.precision,
            overlap=self.policies.overlap,
            tables={table: table for table in self._tables},
            world=self._parts,
            runtime=self._runtime,
        )

    def outcomes(self, tell: Tell) -> Outcomes:
        """Follows saves to their ends."""
        observers = [each for each in (self._tracker, self.chooser) if each is not None]
        return Outcomes(observers, tell=tell, runtime=self._runtime)

    def agents(self, outcomes: Outcomes) -> Agents:
        """The agents of this writer, one after another."""
        run, settings = self._run, self._settings
        config = configuration(
            run.store.url, run.location.options, self.policies, settings, rank=self._part, world=self._parts
        )
        own = run.opened if run.location.is_of_this_process(run.opened) else None
        return Agents(
            self.buffer,
            Launcher(self.buffer, config, own, runtime=self._runtime),
            outcomes,
            Fence(self.buffer.renew, raises_term=self._parts == 1),
            Limits(silent_s=settings.agent_timeout_s, store_s=settings.retry_s + settings.store_timeout_s),
            in_grid=isinstance(self.policies.strategy, Grid),
            runtime=self._runtime,
        )

    def handover(self, outcomes: Outcomes, agents: Agents) -> Handover:
        """Copies snapshots."""
        return Handover(self.buffer, outcomes, agents, _filler, runtime=self._runtime)


def reserve_buffer(
    shards: Sequence[Shard], state_bytes: int, settings: Settings, reserved: FrameBuffer | None = None
) -> FrameBuffer:
    """A buffer for saves of these shards: what was reserved, where that is large enough, or a new one instead."""
    frames, frame_bytes = frames_for(
        sum(shard.row_bytes * shard.count for shard in shards) + state_bytes,
        max((shard.row_bytes for shard in shards), default=0),
        buffer_bytes=settings.buffer_bytes,
        frame_bytes=settings.frame_bytes,
    )
    if reserved is not None:
        has_room = reserved.frames * reserved.frame_bytes >= frames * frame_bytes
        if has_room and reserved.frame_bytes >= frame_bytes:  # frames for a smaller part would be smaller
            return reserved
        reserved.close()
    return FrameBuffer.reserve(frames=frames, frame_bytes=frame_bytes)


def _filler(client: AgentClient, buffer: FrameBuffer) -> FrameFiller:
    return ArrayFiller(client, buffer, frames_ahead=client.free_frames)
