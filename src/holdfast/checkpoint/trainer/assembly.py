"""Builds the parts of a Checkpointer from the user's arguments: each part once, in order of dependency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.sharded_tables import with_dtensors
from holdfast.checkpoint.ranks.tiling import Tiling
from holdfast.checkpoint.restore.partial import PartRecovery
from holdfast.checkpoint.snapshot import side_streams
from holdfast.checkpoint.snapshot.capture import Capture
from holdfast.checkpoint.snapshot.device_baselines import DeviceBaselines
from holdfast.checkpoint.snapshot.draining import staged_snapshot
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.staging import Staging
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller, pin, unpin
from holdfast.checkpoint.track.aliasing import require_memory_of_their_own
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.agent_client import AgentClient
from holdfast.checkpoint.trainer.arguments import TrainingArguments, require_same_tables
from holdfast.checkpoint.trainer.buffer_size import device_bytes, frames_for
from holdfast.checkpoint.trainer.fence import Fence
from holdfast.checkpoint.trainer.handover import Handover, Stage
from holdfast.checkpoint.trainer.launcher import Launcher, configuration
from holdfast.checkpoint.trainer.liveness import Limits
from holdfast.checkpoint.trainer.news import SharedNews
from holdfast.checkpoint.trainer.outcomes import Outcomes, Tell
from holdfast.checkpoint.trainer.policies import Policies, RunLocation, require_known_tables
from holdfast.checkpoint.trainer.resume import Resumption
from holdfast.checkpoint.trainer.routine import Metered, Routine
from holdfast.checkpoint.trainer.save_plan import SavePlanner
from holdfast.checkpoint.trainer.saver import Saver
from holdfast.checkpoint.trainer.schedule import Schedule
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.trainer.sigterm import TerminationFlag
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.divided import Divided
from holdfast.checkpoint.training.dtensors import SwappedParameters, has_dtensors
from holdfast.checkpoint.training.expected_size import full_snapshot_bytes, widest_row_bytes
from holdfast.checkpoint.training.keyed_rows import require_one_rank
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.supported import require_whole
from holdfast.checkpoint.training.tables import Table, find_tables
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.policy import Grid
from holdfast.runtime import Runtime
from holdfast.storage import Store

# By how much ranks of a machine are apart when they copy, mostly. An agent that went to work before that would take a
# core from one that still copies (measured, two ranks on two cores: 2 to 6 ms of 5).
_STAND_BACK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The parts of a Checkpointer."""

    store: Store
    reader: Reader | None
    tracker: Tracker
    outcomes: Outcomes
    agents: Agents
    routine: Routine
    resumption: Resumption
    recovery: PartRecovery
    termination: TerminationFlag
    buffer: FrameBuffer
    pinned: bool  # the buffer's pages are locked for the GPU

    def close(self) -> None:
        """Release everything, from the agent to the signal handler, even if something raises on the way."""
        with ExitStack() as stack:
            stack.callback(self.termination.restore)
            stack.callback(self.buffer.close)
            if self.pinned:
                stack.callback(unpin, self.buffer)
            stack.callback(self.tracker.close)
            stack.callback(self.agents.close)


class Assembly:
    """What all parts of one rank share, and how each is built from it."""

    def __init__(
        self,
        place: RunLocation,
        training: TrainingArguments,
        policies: Policies,
        settings: Settings,
        agreement: Agreement,
        *,
        divided: Divided,
        metered: Metered | None,
        tell: Tell,
        runtime: Runtime,
    ) -> None:
        self._place = place
        self._has_optimizers = bool(training.optimizers)
        self._policies = policies
        self._settings = settings
        self._agreement = agreement
        self._metered = metered
        self._tell = tell
        self._runtime = runtime
        self._opened = place.open(settings.retry_s)
        self._store = patient_store(self._opened, retry_s=settings.retry_s, grace_s=settings.grace_s, runtime=runtime)
        self._chain = Chain(self._store, writer=f"rank {agreement.rank} of pid {os.getpid()}", runtime=runtime)
        self._tiling = Tiling(agreement, is_needed=agreement.any(has_dtensors(training.models)))
        swapped = SwappedParameters(training.models)
        if self._tiling.is_needed:
            divided = with_dtensors(training.models, training.tables, swapped, divided, agreement)
        require_whole(training.models, training.optimizers, divided)
        self._tables = find_tables(
            training.models, training.optimizers, training.tables, divided.tables, training.keyed
        )
        require_one_rank(self._tables, agreement.world)
        require_memory_of_their_own(self._tables, training.models)
        require_same_tables(self._tables, agreement)
        require_known_tables(policies.precision, [table.whole_name for table in self._tables])
        self._state = TrainingState(
            training.models, training.optimizers, training.extra, self._tables, divided, swapped
        )
        self._reader = Reader(training.loader) if training.loader is not None else None
        self._chain.head(skip_damaged=True)  # a run that cannot be read is refused before training begins
        self._tracker = Tracker(
            self._tables,
            training.optimizers,
            row_local=training.row_local,
            names=self._state.parameter_names(),
            check=self._state.check_optimizer,
            divided=divided,
        )
        self._chooser = self._choose_rows()
        self._streams = side_streams.streams_for(table.parameter for table in self._tables)
        self._baselines = self._kept_baselines()
        self._capture = self._capturing()
        self._capture.agree_on_tiles()  # which refuses what cannot be stored
        self._buffer = self._reserve()

    def parts(self) -> Assembled:
        """Build all parts."""
        pinned = _pin_for(self._tables, self._buffer)
        leads = self._agreement.rank == 0
        shared = SharedNews(self._capture, leads=leads) if leads or self._tiling.is_needed else None
        found = (self._tracker, self._chooser, shared, self._baselines)
        observers = [each for each in found if each is not None]
        outcomes = Outcomes(observers, tell=self._tell, runtime=self._runtime)
        agents = self._agents(outcomes, pinned=pinned)
        saver = self._saver(shared, outcomes, agents)
        termination = TerminationFlag(install=self._settings.handle_sigterm)
        return Assembled(
            store=self._store,
            reader=self._reader,
            tracker=self._tracker,
            outcomes=outcomes,
            agents=agents,
            routine=self._routine(saver, outcomes, agents, termination),
            resumption=self._resumption(),
            recovery=self._recovery(),
            termination=termination,
            buffer=self._buffer,
            pinned=pinned,
        )

    def _choose_rows(self) -> RowChooser | None:
        if self._policies.priority is None:
            return None
        rank, world = self._agreement.rank, self._agreement.world
        return RowChooser(self._policies.priority, self._tables, self._tracker, rank=rank, world=world)

    def _capturing(self) -> Capture:
        rank, world = self._agreement.rank, self._agreement.world
        return Capture(
            self._tables,
            self._tracker,
            self._state,
            self._chooser,
            tiling=self._tiling,
            rank=rank,
            world=world,
            streams=self._streams,
            baselines=self._baselines,
        )

    def _kept_baselines(self) -> DeviceBaselines | None:
        """What devices make differences from, where they have memory for it."""
        streams, size = self._streams, self._settings.device_baseline_bytes
        if streams is None or not size:
            return None
        devices = {table.parameter.device for table in self._tables if streams.covers(table.parameter)}
        return DeviceBaselines(streams, dict.fromkeys(devices, size))

    def _reserve(self) -> FrameBuffer:
        settings = self._settings
        frames, frame_bytes = frames_for(
            self._full_bytes(),
            widest_row_bytes(self._tables),
            buffer_bytes=settings.buffer_bytes,
            frame_bytes=settings.frame_bytes,
        )
        return FrameBuffer.reserve(frames=frames, frame_bytes=frame_bytes)

    def _full_bytes(self) -> int:
        return full_snapshot_bytes(self._tables, self._state.check(), self._agreement.world)

    def _agents(self, outcomes: Outcomes, *, pinned: bool) -> Agents:
        config = configuration(
            self._store.url,
            self._place.options,
            self._policies,
            self._settings,
            rank=self._agreement.rank,
            world=self._agreement.world,
            peers=self._agreement.peers,
        )
        launch = Launcher(
            self._buffer,
            config,
            self._opened if self._place.is_of_this_process(self._opened) else None,
            runtime=self._runtime,
        )
        settings = self._settings
        return Agents(
            self._buffer,
            launch,
            outcomes,
            Fence(lambda: _renew(self._buffer, pinned=pinned), raises_term=self._agreement.world == 1),
            Limits(silent_s=settings.agent_timeout_s, store_s=settings.retry_s + settings.store_timeout_s),
            in_grid=isinstance(self._policies.strategy, Grid),
            runtime=self._runtime,
        )

    def _saver(self, shared: SharedNews | None, outcomes: Outcomes, agents: Agents) -> Saver:
        planner = SavePlanner(
            strategy=self._policies.strategy,
            precision=self._policies.precision,
            overlap=self._policies.overlap,
            tables={table.name: table.whole_name for table in self._tables},
            world=self._agreement.world,
            runtime=self._runtime,
        )
        return Saver(
            capture=self._capture,
            tracker=self._tracker,
            shared=shared,
            planner=planner,
            outcomes=outcomes,
            agents=agents,
            agreement=self._agreement,
            overlap=self._policies.overlap,
            handover=Handover(
                self._buffer,
                outcomes,
                agents,
                _filler,
                stage=self._stage(),
                stand_back_s=_STAND_BACK_S if self._agreement.peers else 0.0,
                runtime=self._runtime,
            ),
            runtime=self._runtime,
        )

    def _stage(self) -> Stage | None:
        """Takes what is on devices there."""
        streams, wanted = self._streams, self._settings.device_buffer_bytes
        if streams is None or wanted == 0:
            return None
        full_bytes = self._full_bytes()
        devices = {table.parameter.device for table in self._tables if streams.covers(table.parameter)}
        sizes = {
            device: device_bytes(full_bytes, memory_bytes=streams.memory_bytes(device), wanted=wanted)
            for device in devices
        }
        frame_bytes, movements = self._buffer.frame_bytes, self._tracker.movements
        staging = Staging(streams, sizes, frame_bytes=frame_bytes, movements=movements)
        staging.reserve()
        return partial(staged_snapshot, staging)

    def _routine(self, saver: Saver, outcomes: Outcomes, agents: Agents, termination: TerminationFlag) -> Routine:
        save, priority = self._policies.save, self._policies.priority
        between = save.scaled(priority.r) if priority is not None else None
        return Routine(
            saver=saver,
            outcomes=outcomes,
            agents=agents,
            agreement=self._agreement,
            checkpoints=Schedule(save, self._agreement, self._reader, self._runtime),
            between=Schedule(between, self._agreement, None, self._runtime) if between is not None else None,
            termination=termination,
            reader=self._reader,
            tracker=self._tracker,
            counts_optimizers=self._has_optimizers,
            metered=self._metered,
            baseline_first=self._policies.partial is not None,
        )

    def _resumption(self) -> Resumption:
        return Resumption(
            self._store,
            self._chain,
            self._agreement,
            tables=self._tables,
            state=self._state,
            tracker=self._tracker,
            reader=self._reader,
            reserve_bytes=self._settings.reserve_bytes,
            lease_s=self._settings.lease_s,
            runtime=self._runtime,
        )

    def _recovery(self) -> PartRecovery:
        return PartRecovery(self._store, self._chain, self._tables, self._tracker, self._chooser, runtime=self._runtime)


def _filler(client: AgentClient, buffer: FrameBuffer) -> FrameFiller:
    return TensorFiller(client, buffer, frames_ahead=client.free_frames)


def _pin_for(tables: Sequence[Table], buffer: FrameBuffer) -> bool:
    """Lock the buffer's pages for the GPU, if a table is on one."""
    on_gpu = any(table.parameter.is_cuda for table in tables)
    if on_gpu:
        pin(buffer)
    return on_gpu


def _renew(buffer: FrameBuffer, *, pinned: bool) -> None:
    """Take new memory for snapshots, locked for the GPU as the old one was."""
    if pinned:
        unpin(buffer)
    buffer.renew()
    if pinned:
        pin(buffer)
