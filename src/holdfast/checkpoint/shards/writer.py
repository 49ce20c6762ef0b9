"""Saves the shards of one process: its part of checkpoints that all writers of the job make together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from holdfast.checkpoint.shards.capture import ShardCapture
from holdfast.checkpoint.shards.loaded import Loaded
from holdfast.checkpoint.shards.parts import SavePolicies, WriterParts, reserve_buffer
from holdfast.checkpoint.shards.run import ShardedRun
from holdfast.checkpoint.shards.shard import Shard, require_shards
from holdfast.checkpoint.shards.tracker import ShardTracker
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.changed import ChangedBytes, ChangedShares
from holdfast.checkpoint.trainer.position import Position, SaveStats
from holdfast.checkpoint.trainer.save_plan import SaveRequest
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.errors import ConfigurationError, SaveFailed
from holdfast.events import TrainingEvent
from holdfast.format.catalog import Intent
from holdfast.format.host_values import tensors_in
from holdfast.format.state import RankState, SavedState, SharedState
from holdfast.policy.overlap import Before, OverlapContext, before_save
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import Kind

_TENSORS = ("model", "optimizers")  # of the training state: where an array is a tensor


class ShardWriter:
    """One of the ``parts`` writers of a job. For one thread; nothing here waits for storage unless it says so.

    A save: ``intend`` on the leader, which is part 0; its intent travels to all writers by whatever means the job has;
    ``capture`` on each of them, at the same step. From then on the agents write, and the last one commits; ``poll``
    says what came of it. One save is in progress at a time.

    Args:
        run: The run to save to.
        shards: What this process holds; the other writers hold all other rows of the same tables.
        part: The number of this writer, from 0.
        parts: How many writers there are.
        policies: Strategy, precision, retention, overlap: the same for all writers.
        state_bytes: About how much a save holds beside rows, for the size of the buffer.
        settings: As for a Checkpointer.
        reserved: A buffer that was reserved before it was known for which shards; it is used where it is large enough.
    """

    def __init__(
        self,
        run: ShardedRun,
        shards: Sequence[Shard],
        *,
        part: int,
        parts: int,
        policies: SavePolicies = SavePolicies(),  # noqa: B008 - frozen
        state_bytes: int = 0,
        settings: Settings = Settings(),  # noqa: B008
        reserved: FrameBuffer | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        if not 0 <= part < parts:
            raise ConfigurationError(f"part={part} of parts={parts} is not valid; parts are numbered from 0")
        require_shards(shards)
        self._run = run
        self._part = part
        self._runtime = runtime
        self._events: list[TrainingEvent] = []
        self._tracker = ShardTracker(shards)
        self._capture = ShardCapture(shards, self._tracker)
        buffer = reserve_buffer(shards, state_bytes, settings, reserved)
        built = WriterParts(run, shards, self._tracker, policies, settings, part, parts, buffer, runtime)
        self._overlap = built.policies.overlap
        self._chooser = built.chooser
        self._planner = built.planner()
        self._outcomes = built.outcomes(self._events.append)
        self._agents = built.agents(self._outcomes)
        self._handover = built.handover(self._outcomes, self._agents)
        self._buffer = built.buffer
        self._closed = False

    # ---- begin and end -------------------------------------------------------------------------------------------

    def start(self, term: int, loaded: Loaded | None = None, *, replaces: bool = False) -> None:
        """Start the agent, and save from what was loaded on.

        Args:
            term: What ``take_over`` returned to the leader.
            loaded: What the shards hold. None: the run is new.
            replaces: Another process was this part of the job in the same term. Its agent may still be at work, so
                nothing that it left behind is cleaned up.
        """
        self._agents.has_predecessor = replaces
        self._agents.start(term, self._run.announce_agent if self._part == 0 else lambda: None)
        self._outcomes.go_on(Position(term=term))
        if loaded is not None:
            self.go_on(loaded)
        elif self._chooser is not None:
            self._chooser.start()

    def go_on(self, loaded: Loaded) -> None:
        """The shards were loaded: save from there on. No save may be in progress.

        Rows that are newer than the checkpoint, or were saved with other columns, count as changed.
        """
        job = loaded.job
        position = Position.restored(
            loaded.info, job, baseline=loaded.baseline, term=self._outcomes.position.term, counts=not loaded.is_newest
        )
        self._outcomes.go_on(position)
        self._tracker.restored(loaded.specs, loaded.above)
        if loaded.is_newest:
            self._tracker.mark_all()
        if self._chooser is not None:
            self._chooser.start()

    def close(self) -> None:
        """Wait until the agent has written what it was given, and end it."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:
            stack.callback(self._buffer.close)
            stack.callback(self._agents.close)

    # ---- training ------------------------------------------------------------------------------------------------

    def mark(self, group: str, rows: NDArray[Any]) -> None:
        """Rows of a group were updated; to be called after each update.

        Args:
            group: A group of shards; the table's name where a shard has none.
            rows: Their places in the group's arrays: integers, in any order.
        """
        self._tracker.mark(group, rows)
        if self._chooser is not None:
            self._chooser.use(group, rows)

    def mark_all(self) -> None:
        """Every row may have changed."""
        self._tracker.mark_all()

    # ---- saves ---------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no save is in progress."""
        return self._outcomes.in_flight is None

    @property
    def position(self) -> Position:
        """What the next save builds on."""
        return self._outcomes.position

    @property
    def stats(self) -> SaveStats:
        """What saving has cost so far."""
        return self._outcomes.stats

    @property
    def agent_pid(self) -> int | None:
        """The agent's process id; None if it is a thread."""
        return self._agents.pid

    @property
    def counts_changes(self) -> bool:
        """Whether the strategy decides by what changed: then the leader needs ``changed()`` of all writers."""
        return self._planner.counts_changes

    def changed(self) -> dict[str, int]:
        """What changed in these shards, for ``intend``. Plain JSON."""
        return asdict(self._capture.changed(self._planner.stored(self.position)))

    def intend(
        self,
        step: int,
        *,
        changed: Iterable[Mapping[str, int]] = (),
        tag: str | None = None,
        metrics: Mapping[str, float] | None = None,
        priority: bool = False,
        force: bool = False,
    ) -> dict[str, Any] | None:
        """On the leader: what all writers are to save now. Plain JSON; None if this is not the time for a save.

        Which is while another save is in progress, unless the overlap policy or ``force`` says to wait for it or to
        cancel it, or shortly after a failed one; a priority save needs a checkpoint to build on.

        Args:
            step: The step that all of them are at.
            changed: ``changed()`` of all writers, this one included, if ``counts_changes``.
            tag: A name that ``KeepTagged`` keeps it by and lists show.
            metrics: Numbers that lists show with it.
            priority: Save the rows that come first, between two checkpoints.
            force: Wait for a save in progress.
        """
        self._agents.poll()
        before = self._before(priority=priority, force=force)
        if before is Before.SKIP:
            return None
        self._agents.prepare()
        self._agents.settle(cancel=before is Before.CANCEL)
        if self._agents.fence.is_open or (priority and self.position.baseline is None):
            return None
        request = SaveRequest(step=step, tag=tag, metrics=dict(metrics or {}), priority=priority)
        writers = [ChangedBytes(**each) for each in changed]
        return self._planner.intend(request, self.position, lambda _: ChangedShares.joined(writers)).to_json()

    def capture(
        self,
        intent: Mapping[str, Any],
        state: RankState | None = None,
        *,
        training: Mapping[str, Any] | None = None,
        pls: Mapping[str, float | None] | None = None,
    ) -> bool:
        """Copy what the intent asks for, and hand it to the agent. False if the agent died meanwhile.

        Waits for storage only if the last save is still in progress here, or if the copy is larger than the buffer.

        Args:
            intent: What ``intend`` gave on the leader.
            state: What is this process's own; of a priority save, what its rows hold, or nothing.
            training: On the leader: ``model`` (dense weights by name), ``modules``, ``optimizers`` and ``extra``.
                Arrays in ``model`` and ``optimizers`` are stored as tensors.
            pls: On the leader: the meter of lost samples, if there is one.
        """
        agreed = Intent.from_json(dict(intent))
        self._agents.prepare()
        self._agents.settle()
        if agreed.kind is not Kind.PRIORITY and agreed.parent != self.position.checkpoint:
            self._tracker.mark_all()  # the leader saw another outcome of the last save: its rows may be missing in it
        started_s = self._runtime.monotonic_s()
        taken = self._handover.take(
            agreed,
            lambda: self._captured(agreed, state, training, pls),
            started_s=started_s,
            state_apart=self._planner.in_grid(agreed.kind),
        )
        if taken:
            self._outcomes.taken(agreed, self._runtime.monotonic_s() - started_s)
        return taken

    def poll(self, timeout_s: float = 0.0) -> list[TrainingEvent]:
        """What became of saves since the last call: ``SnapshotTaken``, ``SaveCommitted``, ``SaveGivenUp``.

        To be called now and then, also to notice that an agent died. Raises TakenOver once another job has taken the
        run over.

        Args:
            timeout_s: How long to wait for a first report of the agent.
        """
        self._agents.poll(timeout_s)
        events, self._events[:] = list(self._events), []
        return events

    def cancel(self) -> None:
        """Give up the save in progress, on all writers, unless its commit has begun; ``poll`` tells."""
        if self._outcomes.in_flight is not None:
            self._outcomes.call_off()
            self._agents.client.cancel()

    def make_way(self) -> None:
        """Give up a priority save in progress, such as for a checkpoint, which holds its rows as well."""
        if self._outcomes.in_flight is not None and self._outcomes.in_flight.is_priority:
            self.cancel()

    def settle(self) -> None:
        """Wait until no save is in progress."""
        self._agents.settle()

    def drain(self) -> None:
        """Wait until no save is in progress; raises SaveFailed, or TakenOver, if the last one failed."""
        self._agents.drain()

    def arrange(self) -> None:
        """Wait until all increments that are due are rearranged, with a ``Grid``."""
        self._agents.arrange()

    def annotate(self, checkpoint: str, metrics: Mapping[str, float]) -> None:
        """Add metrics to a committed checkpoint."""
        self._agents.annotate(checkpoint, metrics)

    def _before(self, *, priority: bool, force: bool) -> Before:
        in_flight = self._outcomes.in_flight
        found = before_save(
            OverlapContext(
                overlap=self._overlap,
                rows_only=priority,
                under_way=in_flight is not None,
                under_way_rows_only=in_flight is not None and in_flight.is_priority,
                is_forced=force,
                may_retry=self._outcomes.may_retry(),
            )
        )
        if in_flight is not None and found is Before.SKIP:
            self._outcomes.delay_rows() if priority else self._outcomes.skip()
        return found

    def _captured(
        self,
        intent: Intent,
        state: RankState | None,
        training: Mapping[str, Any] | None,
        pls: Mapping[str, float | None] | None,
    ) -> Captured:
        if intent.kind is Kind.PRIORITY:
            if self._chooser is None:
                raise SaveFailed("no priority policy is set")
            return self._capture.take_rows(intent.step, self._chooser.chosen, state)
        if (training is not None) != (self._part == 0):
            raise ConfigurationError("the state of the training is given by the leader, part 0, and by no other writer")
        shared = None
        if training is not None:
            trees = {name: tensors_in(tree) if name in _TENSORS else tree for name, tree in training.items()}
            shared = SharedState(job=self.position.job_at(intent, pls), training=trees)
        own = state if state is not None else RankState(step=intent.step)
        return self._capture.take(intent, SavedState(rank=own, shared=shared))
