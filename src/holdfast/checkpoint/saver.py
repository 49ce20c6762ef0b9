"""Takes snapshots and follows them until they are committed, failed or lost: the trainer's side of a save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from holdfast.checkpoint.agreement import Agreement
from holdfast.checkpoint.buffer import FrameBuffer
from holdfast.checkpoint.channel import Committed, Failed, Notice, TableSlice
from holdfast.checkpoint.client import AgentClient, Lost
from holdfast.checkpoint.launch import Handle
from holdfast.checkpoint.rng import capture_rng
from holdfast.checkpoint.snapshot import FrameFiller, TableCopy, row_range
from holdfast.checkpoint.state import TrainingState
from holdfast.checkpoint.tables import Table
from holdfast.checkpoint.tracker import Tracker
from holdfast.errors import AgentDied, SaveFailed, TakenOver
from holdfast.format.catalog import Entry, Intent, checkpoint_id
from holdfast.format.dtypes import code_of
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.tree import EncodedTree, encode_tree
from holdfast.policy import Overlap, Strategy, StrategyContext
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import CheckpointInfo, Kind, Since

logger = logging.getLogger("holdfast")

_FIRST_PAUSE_S = 5.0  # before a save is tried again after a failure; doubles up to:
_LONGEST_PAUSE_S = 600.0
_MAX_DEATHS = 3  # agents that may die in a row before the save they were asked about counts as failed


@dataclass(slots=True, kw_only=True)
class SaveStats:
    """What saving has cost so far; times in seconds."""

    snapshots: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    agent_deaths: int = 0
    last_stall_s: float = 0.0  # how long the loop waited for the last snapshot
    total_stall_s: float = 0.0
    buffer_waits: int = 0  # snapshots that were larger than the buffer
    last_commit_step: int | None = None
    last_commit_s: float | None = None  # monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A save of one step."""

    step: int
    tag: str | None
    metrics: Mapping[str, float]
    reader: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a trainer stands in its run: what it took over, restored and may build on."""

    term: int
    checkpoint: str | None = None  # the last one committed or restored
    baseline: str | None = None
    baseline_bytes: int = 0
    fractions: tuple[float, ...] = ()  # sizes of the deltas since the baseline


@dataclass(slots=True, kw_only=True)
class _InFlight:
    intent: Intent
    asked: bool = False  # the agent was asked what became of it


class Saver:
    """One save at a time: snapshot now, outcome later."""

    def __init__(
        self,
        *,
        tables: Sequence[Table],
        tracker: Tracker,
        state: TrainingState,
        agreement: Agreement,
        strategy: Strategy,
        overlap: Overlap,
        buffer: FrameBuffer,
        launch: Callable[[int], Handle],
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._tables = tables
        self._tracker = tracker
        self._state = state
        self._agreement = agreement
        self._strategy = strategy
        self._overlap = overlap
        self._buffer = buffer
        self._launch = launch
        self._runtime = runtime
        self._client: AgentClient | None = None
        self._in_flight: _InFlight | None = None
        self._failure: str | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._not_before_s = float("-inf")
        self._deaths = 0
        self.position = Position(term=0)
        self.taken_over: str | None = None
        self.stats = SaveStats()

    def start(self, position: Position) -> None:
        """Begin to save from here; starts the agent."""
        self.position = position
        self._client = AgentClient(self._buffer, lambda: self._launch(position.term))

    @property
    def agent_pid(self) -> int | None:
        """The agent's process, where it has one."""
        return self._client.pid if self._client else None

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._in_flight is not None

    @property
    def failed(self) -> bool:
        """Whether the last save failed and no other is under way."""
        return self._failure is not None and not self.busy

    def may_retry(self) -> bool:
        """Whether the pause after a failed save is over."""
        return self._runtime.monotonic_s() >= self._not_before_s

    def save(self, request: SaveRequest, *, force: bool = False) -> bool:
        """Snapshot now. False if it was skipped because the last one is still being written, or an agent died.

        ``force`` waits instead of skipping. All ranks of a job call this at the same step.
        """
        self.poll()
        decision = self._agreement.broadcast(self._decide(request, force) if self._agreement.rank == 0 else None)
        if decision is None:
            self.stats.skipped += 1
            return False
        self._await_predecessor()
        intent = Intent.from_json(decision)
        if intent.parent != self.position.checkpoint:
            self._distrust_marks()
        started_s = self._runtime.monotonic_s()
        taken = False
        try:
            self._snapshot(intent, request)
            taken = True
        except AgentDied as error:
            self._lost(str(error))
        finally:
            taken_by_all = not self._agreement.any(not taken)
        if taken:
            self._count(self._runtime.monotonic_s() - started_s)
        return taken_by_all

    def poll(self, timeout_s: float | None = 0.0) -> None:
        """Take in what the agent reports. Raises TakenOver once another trainer owns the run."""
        if self._client is not None:
            for event in self._client.poll(timeout_s):
                self._on(event)
        if self.taken_over:
            raise TakenOver(self.taken_over)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no save is under way; raises SaveFailed if the last one failed."""
        deadline_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while self._in_flight is not None:
            self.poll(0.5)
            if deadline_s is not None and self._runtime.monotonic_s() > deadline_s:
                raise SaveFailed(f"checkpoint {self._in_flight.intent.checkpoint} was not committed in {timeout_s} s")
        if self._failure is not None:
            raise SaveFailed(self._failure)

    def annotate(self, checkpoint: str, metrics: Mapping[str, float]) -> None:
        """Attach metrics to a committed checkpoint."""
        if self._client is None:
            return
        try:
            self._client.annotate(checkpoint, dict(metrics))
        except AgentDied as error:
            logger.warning("%s; another one is started", error)
            self._client.restart()
            self._client.annotate(checkpoint, dict(metrics))

    def close(self) -> None:
        """End the agent after its work."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _decide(self, request: SaveRequest, force: bool) -> dict[str, Any] | None:
        """The intent of this save, or None to skip it."""
        if self.busy and not force and self._overlap is Overlap.SKIP:
            logger.info("step %d: skipped a save, the last one is still being written%s", request.step, self._age())
            return None
        if not force and not self.may_retry():
            return None
        if self.busy and not force and self._overlap is Overlap.CANCEL and self._client is not None:
            self._client.cancel()
        self._settle()
        position = self.position
        context = StrategyContext(baseline_exists=position.baseline is not None, delta_fractions=position.fractions)
        kind = self._strategy.decide(context)
        base = {Kind.FULL: None, Kind.DIFFERENTIAL: position.baseline, Kind.INCREMENTAL: position.checkpoint}[kind]
        return Intent(
            checkpoint=checkpoint_id(request.step, position.term, self._runtime.token()),
            step=request.step,
            term=position.term,
            kind=kind,
            parent=position.checkpoint,
            base=base,
            world=self._agreement.world,
            created_s=self._runtime.wall_s(),
            overlap=self._overlap.value,
            tag=request.tag,
            metrics=request.metrics,
        ).to_json()

    def _await_predecessor(self) -> None:
        """On other ranks than 0: the last save is over for the job, so it must be over here too."""
        if self._in_flight is not None and self._client is not None:
            self._client.cancel()
            self._settle()

    def _distrust_marks(self) -> None:
        """Rank 0 saw another outcome of the last save: rows that were forgotten here may be missing in its parent."""
        for table in self._tables:
            self._tracker.mark(table.name, None)

    def _settle(self) -> None:
        """Learn how the save under way ended: the next one's parent depends on it."""
        while self._in_flight is not None:
            self.poll(0.5)

    def _snapshot(self, intent: Intent, request: SaveRequest) -> None:
        if self._client is None:
            raise SaveFailed("the saver was not started")
        self._tracker.begin(full=intent.kind is Kind.FULL)
        self._in_flight = _InFlight(intent=intent)
        begun = False
        try:
            copies, slices = self._table_copies(intent.kind)
            tree = self._encode_state(request)
            tensors = [torch.frombuffer(bytearray(tree.skeleton), dtype=torch.uint8), *tree.tensors]
            self._client.begin(intent, slices, [(code_of(t.dtype), tuple(t.shape)) for t in tensors])
            begun = True
            filler = FrameFiller(self._client, self._buffer)
            for index, tensor in enumerate(tensors):
                filler.add_state(index, tensor)
            for copy in copies:
                filler.add_table(copy)
            filler.flush()
            self._client.seal(self._full_bytes(copies, tensors))
        except AgentDied:
            raise
        except BaseException as error:
            if begun:
                self._client.abandon()
                self._settle()
            else:
                self._give_up(repr(error))
            raise
        self._warn_small_buffer(filler.copied_bytes)

    def _table_copies(self, kind: Kind) -> tuple[list[TableCopy], list[TableSlice]]:
        since = Since.BASELINE if kind is Kind.DIFFERENTIAL else Since.LAST
        copies, slices = [], []
        for index, table in enumerate(self._tables):
            start, stop = row_range(table.rows, self._agreement.rank, self._agreement.world)
            touched = self._tracker.touched(table, since)
            whole = kind is Kind.FULL or touched.whole
            spec = table.spec()
            slots = table.slots()
            copies.append(
                TableCopy(
                    index=index,
                    columns=spec.columns,
                    tensors=(table.parameter.detach(), *(slots[column.name] for column in spec.slots)),
                    start=start,
                    stop=stop,
                    ids=None if whole else touched.ids(start, stop),
                )
            )
            slices.append(TableSlice(spec=table_spec_to_json(spec), start=start, stop=stop, whole=whole))
        return copies, slices

    def _encode_state(self, request: SaveRequest) -> EncodedTree:
        """Everything but rows: what all ranks share from rank 0, what is each rank's own from each."""
        tree: dict[str, Any] = {
            "step": request.step,
            "rng": capture_rng(),
            "reader": request.reader,
            "fractions": list(self.position.fractions),
        }
        if self._agreement.rank == 0:
            tree["training"] = self._state.capture()
        return encode_tree(tree)

    def _full_bytes(self, copies: Sequence[TableCopy], tensors: Sequence[torch.Tensor]) -> int:
        rows = sum(row_bytes(copy.columns) * (copy.stop - copy.start) for copy in copies)
        return rows + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _on(self, event: object) -> None:
        match event:
            case Committed():
                self._committed(Entry.from_json(event.entry).info)
            case Failed():
                self._failed(event)
            case Lost():
                self._lost(event.message)
            case Notice():
                logger.warning(event.message)

    def _committed(self, info: CheckpointInfo) -> None:
        if self._in_flight is None or self._in_flight.intent.checkpoint != info.id:
            return
        self._in_flight = None
        full = info.kind is Kind.FULL
        self._tracker.committed(full=full)
        if full:
            self.position = Position(
                term=self.position.term, checkpoint=info.id, baseline=info.id, baseline_bytes=info.size_bytes
            )
        else:
            fraction = info.size_bytes / max(1, self.position.baseline_bytes)
            fractions = (*self.position.fractions, fraction)
            self.position = replace(self.position, checkpoint=info.id, fractions=fractions)
        self._failure = None
        self._pause_s, self._not_before_s, self._deaths = _FIRST_PAUSE_S, float("-inf"), 0
        self.stats.committed += 1
        self.stats.last_commit_step = info.step
        self.stats.last_commit_s = self._runtime.monotonic_s()

    def _failed(self, event: Failed) -> None:
        in_flight = self._in_flight
        if in_flight is None or in_flight.intent.checkpoint != event.checkpoint:
            return
        if event.unknown and not in_flight.asked:
            logger.warning(
                "whether checkpoint %s was committed is unknown (%s); asking", event.checkpoint, event.message
            )
            self._ask(in_flight)
            return
        if event.error == TakenOver.__name__:
            self.taken_over = event.message
        self._give_up(f"{event.error}: {event.message}")

    def _lost(self, message: str) -> None:
        """The agent died: go on, say so, start another, and let it find out what became of the save.

        When they die one after another, the next one is started with the next save.
        """
        logger.warning("%s; training goes on and another agent is started%s", message, self._age())
        self.stats.agent_deaths += 1
        self._deaths += 1
        sealed = self._in_flight
        if self._client is None:
            return
        if self._deaths <= _MAX_DEATHS and self._restarted(self._client):
            if sealed is not None:
                self._ask(sealed)
        elif sealed is not None:
            self._give_up(f"{self._deaths} agents in a row ended before they could commit; the last: {message}")

    def _restarted(self, client: AgentClient) -> bool:
        try:
            client.restart()
            return True
        except OSError as error:
            logger.warning("another agent could not be started: %s", error)
            return False

    def _ask(self, in_flight: _InFlight) -> None:
        """Ask the agent about a save whose outcome is unknown.

        An answer that is no answer either counts as a failure. That is safe even if the commit turns up later: the
        next save stands on the same parent and holds the same rows and more.
        """
        in_flight.asked = True
        if self._client is not None:
            self._client.resolve(in_flight.intent.checkpoint)

    def _give_up(self, why: str) -> None:
        """The save under way will not be committed; its rows stay marked and go into the next one."""
        assert self._in_flight is not None
        intent, self._in_flight = self._in_flight.intent, None
        self._tracker.failed()
        self.stats.failed += 1
        self._failure = f"the checkpoint of step {intent.step} was not committed: {why}"
        self._not_before_s = self._runtime.monotonic_s() + self._pause_s
        logger.warning(
            "%s; the next save holds its rows, in %.0f s at the earliest%s", self._failure, self._pause_s, self._age()
        )
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _count(self, stall_s: float) -> None:
        self.stats.snapshots += 1
        self.stats.last_stall_s = stall_s
        self.stats.total_stall_s += stall_s

    def _warn_small_buffer(self, needed: int) -> None:
        waited_s = self._client.waited_s if self._client else 0.0
        if waited_s:
            self.stats.buffer_waits += 1
            have = self._buffer.frames * self._buffer.frame_bytes
            logger.warning(
                "a snapshot of %.1f MiB waited %.2f s for the agent, because the buffer has %.1f MiB; "
                "set buffer_bytes=%d to avoid it",
                needed / 2**20,
                waited_s,
                have / 2**20,
                needed + self._buffer.frame_bytes,
            )

    def _age(self) -> str:
        if self.stats.last_commit_s is None:
            return "; nothing has been committed by this trainer yet"
        return f"; the last commit is {self._runtime.monotonic_s() - self.stats.last_commit_s:.0f} s old"
