"""Takes snapshots and follows them until they are committed, failed or lost: the trainer's side of a save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.agreement import Agreement
from holdfast.checkpoint.buffer import FrameBuffer
from holdfast.checkpoint.capture import Capture, Captured
from holdfast.checkpoint.channel import Committed, Failed, GridNews, Notice
from holdfast.checkpoint.client import AgentClient, Lost
from holdfast.checkpoint.crew import WORKERS
from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.launch import Handle
from holdfast.checkpoint.position import Pause, Position, SaveStats
from holdfast.checkpoint.priority import RowChooser
from holdfast.checkpoint.snapshot import FrameFiller
from holdfast.checkpoint.tracker import Tracker
from holdfast.errors import AgentDied, BaseDropped, SaveFailed, TakenOver
from holdfast.format.catalog import Entry, Intent, checkpoint_id
from holdfast.policy import Grid, Overlap, Precision, Stored, Strategy, StrategyContext
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import CheckpointInfo, Kind

logger = logging.getLogger("holdfast")

_AWAIT, _CANCEL = "await", "cancel"
_MAX_DEATHS = 3  # agents that may die in a row before the save they were asked about counts as failed


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A save of one step."""

    step: int
    tag: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    reader: Mapping[str, Any] | None = None
    priority: bool = False  # of the rows that come first, between two checkpoints
    pls: Mapping[str, Any] | None = None  # the meter of lost samples, as of this checkpoint


@dataclass(slots=True, kw_only=True)
class _InFlight:
    intent: Intent
    asked: bool = False  # the agent was asked what became of it
    problem: str = ""  # why it had to be asked
    skipped: bool = False  # another save was due meanwhile
    unwanted: bool = False  # a checkpoint that is due holds its rows as well

    @property
    def is_priority(self) -> bool:
        return self.intent.kind is Kind.PRIORITY


class Saver:
    """One save at a time: snapshot now, outcome later."""

    def __init__(
        self,
        *,
        capture: Capture,
        tracker: Tracker,
        agreement: Agreement,
        strategy: Strategy,
        precision: Precision,
        overlap: Overlap,
        buffer: FrameBuffer,
        launch: Callable[[int], Handle],
        chooser: RowChooser | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._capture = capture
        self._chooser = chooser
        self._tracker = tracker
        self._agreement = agreement
        self._strategy = strategy
        self._precision = precision
        self._overlap = overlap
        self._buffer = buffer
        self._launch = launch
        self._runtime = runtime
        self._client: AgentClient | None = None
        self._in_flight: _InFlight | None = None
        self._failure: str | None = None
        self._pause = Pause()
        self._deaths = 0
        self._arranged = False
        self.position = Position(term=0)
        self.taken_over: str | None = None
        self.stats = SaveStats()

    def start(self, position: Position) -> None:
        """Begin to save from here; starts the agent."""
        self.go_on(position)
        self._client = AgentClient(self._buffer, lambda: self._launch(position.term))

    def go_on(self, position: Position) -> None:
        """Save from here: the tables are those of this position's checkpoint."""
        self.position = position
        if self._chooser is not None:
            self._chooser.start()

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
        return self._pause.is_over(self._runtime.monotonic_s())

    def save(self, request: SaveRequest, *, force: bool = False) -> bool:
        """Snapshot now. False if it was skipped because the last one is still being written, or an agent died.

        ``force`` waits instead of skipping. All ranks of a job call this at the same step.
        """
        self.poll()
        leads = self._agreement.rank == 0
        plan = self._agreement.broadcast(self._plan(request, force) if leads else None)
        if plan is None:
            return False
        # Each rank by itself, outside of a collective: only then it sees that its agent died, and settles the save.
        self.settle(cancel=plan == _CANCEL)
        intent = Intent.from_json(self._agreement.broadcast(self._intend(request) if leads else None))
        if intent.parent != self.position.checkpoint:
            self._distrust_marks()
        started_s = self._runtime.monotonic_s()
        taken = False
        try:
            self._snapshot(intent, request, started_s)
            taken = True
        except AgentDied as error:
            self._lost(str(error))
        finally:
            taken_by_all = not self._agreement.any(not taken)
        if taken:
            self.stats.count_snapshot(self._runtime.monotonic_s() - started_s, checkpoint=not request.priority)
        return taken_by_all

    def poll(self, timeout_s: float | None = 0.0) -> None:
        """Take in what the agent reports. Raises TakenOver once another trainer owns the run."""
        if self._client is not None:
            for event in self._client.poll(timeout_s):
                self._on(event)
        if self.taken_over:
            raise TakenOver(self.taken_over)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no save is under way; raises SaveFailed, or TakenOver, if the last one failed."""
        deadline_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while self._in_flight is not None:
            self.poll(0.5)
            if deadline_s is not None and self._runtime.monotonic_s() > deadline_s:
                raise SaveFailed(f"checkpoint {self._in_flight.intent.checkpoint} was not committed in {timeout_s} s")
        if self.taken_over is not None:
            raise TakenOver(self.taken_over)
        if self._failure is not None:
            raise SaveFailed(self._failure)

    def arrange(self) -> None:
        """Wait until the agent has rearranged all that is due, or until it is gone."""
        deaths = self.stats.agent_deaths
        if self._client is not None and isinstance(self._strategy, Grid):
            self._arranged = False
            self._client.arrange()
            while not self._arranged and self.stats.agent_deaths == deaths and not self._client.is_lost:
                self.poll(0.5)

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

    def _plan(self, request: SaveRequest, force: bool) -> str | None:
        """What becomes of the save under way before this one is taken; None to skip this one."""
        in_flight = self._in_flight
        if request.priority:
            stands = self.position.baseline is not None and self.may_retry()
            return _AWAIT if in_flight is None and stands else None
        if in_flight is not None and in_flight.is_priority:
            return _CANCEL
        if in_flight is not None and not force and self._overlap is Overlap.SKIP:
            if not in_flight.skipped:  # the save stays due: it is told and counted once, not at every step
                in_flight.skipped = True
                self.stats.skipped += 1
                age = self._age()
                logger.info("step %d: skipped a save, the last one is still being written; %s", request.step, age)
            return None
        if not force and not self.may_retry():
            return None
        if self.busy and (force or self._overlap is Overlap.WAIT):
            return _AWAIT
        return _CANCEL  # also where it is over here: another rank's agent that has not noticed need not go on

    def _kind(self) -> Kind:
        """Of the checkpoint that is due."""
        position = self.position
        if position.is_too_coarse(self._ranks()):
            return Kind.FULL
        context = StrategyContext(
            baseline_exists=position.baseline is not None,
            delta_fractions=position.fractions,
            baseline_s=position.baseline_s,
            delta_s=position.delta_s,
            bytes_above_baseline=self.stats.grid.bytes_above_baseline,
            read_bytes_per_s=self._restore_rate(),
        )
        return self._strategy.decide(context)

    def _intend(self, request: SaveRequest) -> dict[str, Any]:
        position = self.position
        kind = Kind.PRIORITY if request.priority else self._kind()
        base = {Kind.FULL: None, Kind.DIFFERENTIAL: position.baseline}.get(kind, position.checkpoint)
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

    def _restore_rate(self) -> float | None:
        """How fast a restore would read: what one thread of the agent has measured, with as many as a restore has."""
        rate = self.stats.grid.read_bytes_per_s
        return None if rate is None else WORKERS * rate

    def _stored(self, table: str) -> Stored:
        return self._precision.decide(table, self.position.restores)

    def _ranks(self) -> dict[str, int]:
        stored = {name: self._stored(name) for name in self._capture.table_names}
        return {name: each.rank for name, each in stored.items() if each.bits is not None}

    def _coarsest(self, kind: Kind) -> dict[str, int]:
        """How coarse the tables are stored from the baseline up to a checkpoint of this kind."""
        ranks = self._ranks()
        return ranks if kind is Kind.FULL else self.position.coarsest_with(ranks)

    def _in_grid(self, kind: Kind) -> bool:
        return isinstance(self._strategy, Grid) and kind is Kind.INCREMENTAL

    def _distrust_marks(self) -> None:
        """Rank 0 saw another outcome of the last save: rows that were forgotten here may be missing in its parent."""
        self._tracker.mark_all()

    def settle(self, *, cancel: bool = False) -> None:
        """Learn how the save under way ended: the next one's parent depends on it."""
        if cancel and self._in_flight is not None and self._client is not None:
            self._in_flight.unwanted = self._in_flight.is_priority
            self._client.cancel()
        while self._in_flight is not None:
            self.poll(0.5)

    def _snapshot(self, intent: Intent, request: SaveRequest, started_s: float) -> None:
        if self._client is None:
            raise SaveFailed("the saver was not started")
        if intent.kind is Kind.PRIORITY:
            self._tracker.check()  # and no more: the marks are those of the next checkpoint
        else:
            self._tracker.begin(full=intent.kind is Kind.FULL)
        self._in_flight = _InFlight(intent=intent)
        begun = False
        try:
            captured = self._capture_rows(request) if request.priority else self._capture_all(intent.kind, request)
            self._client.begin(intent, captured.slices, captured.tensor_specs)
            begun = True
            filler = FrameFiller(self._client, self._buffer, frames_ahead=self._client.free_frames)
            captured.copy_into(filler, state_apart=self._in_grid(intent.kind))
            self._client.seal(captured.full_bytes, self._runtime.monotonic_s() - started_s)
        except AgentDied:
            raise
        except BaseException as error:
            if begun:
                self._client.abandon()
                self.settle()
            else:
                self._give_up(repr(error))
            raise
        self._warn_small_buffer(filler.copied_bytes)

    def _capture_all(self, kind: Kind, request: SaveRequest) -> Captured:
        """A checkpoint's share of this rank."""
        local = {
            "step": request.step,
            "reader": request.reader,
            "fractions": list(self.position.fractions),
            "seconds": [self.position.baseline_s, list(self.position.deltas_s)],
            "restores": self.position.restores,
            "coarsest": self._coarsest(kind),
            "pls": request.pls,
        }
        if self._chooser is not None:
            self._chooser.begin(None)
        return self._capture.take(kind, local, self._stored)

    def _capture_rows(self, request: SaveRequest) -> Captured:
        """A priority save's."""
        if self._chooser is None:
            raise SaveFailed("there is no policy that says which rows to save first")
        chosen = self._chooser.choose()
        self._chooser.begin(chosen)
        return self._capture.take_rows(chosen, request.step)

    def _on(self, event: object) -> None:
        match event:
            case Committed():
                self._committed(Entry.from_json(event.entry).info, event.seconds)
            case GridNews():
                self.stats.grid = GridStats(**event.stats)
                self._arranged = self._arranged or event.settled
            case Failed():
                self._failed(event)
            case Lost():
                self._lost(event.message)
            case Notice():
                logger.warning(event.message)

    def _committed(self, info: CheckpointInfo, seconds: float) -> None:
        if self._in_flight is None or self._in_flight.intent.checkpoint != info.id:
            return
        self._in_flight = None
        self._pause.end()
        self._deaths = 0
        if self._chooser is not None:
            self._chooser.committed()
        if info.kind is Kind.PRIORITY:
            self.stats.count_priority(info.size_bytes)
            return
        self._tracker.committed(full=info.kind is Kind.FULL)
        self.position = self.position.after(info, seconds, self._ranks())
        self._failure = None
        self.stats.count_commit(info.step, self._runtime.monotonic_s())

    def _failed(self, event: Failed) -> None:
        in_flight = self._in_flight
        if in_flight is None or in_flight.intent.checkpoint != event.checkpoint:
            return
        if event.unknown and not in_flight.asked:
            logger.warning(
                "whether checkpoint %s was committed is unknown (%s); asking", event.checkpoint, event.message
            )
            in_flight.problem = f"{event.error}: {event.message}"
            self._ask(in_flight)
            return
        if event.error == TakenOver.__name__:
            self.taken_over = event.message
        if event.error == BaseDropped.__name__:
            self.position = self.position.without_baseline()
        self._give_up(in_flight.problem or f"{event.error}: {event.message}")

    def _lost(self, message: str) -> None:
        """The agent died: go on, say so, start another, and let it find out what became of the save.

        When they die one after another, the next one is started with the next save.
        """
        logger.warning("%s; training goes on and another agent is started; %s", message, self._age())
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
        ended, self._in_flight = self._in_flight, None
        if self._chooser is not None:
            self._chooser.failed()
        if ended.is_priority:
            self._give_up_rows(ended, why)
            return
        self._tracker.failed()
        self.stats.failed += 1
        self._failure = f"the checkpoint of step {ended.intent.step} was not committed: {why}"
        now_s = self._runtime.monotonic_s()
        logger.warning(
            "%s; the next save holds its rows, in %.0f s at the earliest; %s",
            self._failure,
            self._pause.begin(now_s),
            self.stats.age(now_s),
        )

    def _give_up_rows(self, ended: _InFlight, why: str) -> None:
        """A priority save that failed is no failed checkpoint: the next one chooses the same rows and newer ones."""
        if ended.unwanted:
            return
        self.stats.priority_failed += 1
        self._pause.begin(self._runtime.monotonic_s())
        logger.warning("the rows chosen at step %d were not saved: %s", ended.intent.step, why)

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
        return self.stats.age(self._runtime.monotonic_s())
