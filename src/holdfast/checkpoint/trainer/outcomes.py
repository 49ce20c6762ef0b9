"""The outcomes of saves: the one in progress, how the last one failed, the position that the next one builds on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.trainer.in_flight import InFlight, SaveObserver
from holdfast.checkpoint.trainer.position import Pause, Position, SaveStats, fidelities
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken, TrainingEvent
from holdfast.format.catalog import Intent
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import CheckpointInfo, Kind

logger = logging.getLogger("holdfast")

Tell = Callable[[TrainingEvent], None]


class Outcomes:
    """One save at a time: ``begin``, then ``committed`` or ``give_up``. Nothing else changes its state."""

    def __init__(self, observers: Sequence[SaveObserver], *, tell: Tell, runtime: Runtime = SYSTEM) -> None:
        self._observers = observers
        self._tell = tell
        self._runtime = runtime
        self._pause = Pause()
        self._in_flight: InFlight | None = None
        self._position = Position(term=0)
        self._failure: str | None = None
        self._retake: InFlight | None = None
        self._taken_over: str | None = None
        self._stats = SaveStats()

    @property
    def in_flight(self) -> InFlight | None:
        """The save in progress."""
        return self._in_flight

    @property
    def position(self) -> Position:
        """What the next save builds on."""
        return self._position

    @property
    def failure(self) -> str | None:
        """Why the last finished checkpoint was not committed; None if it was."""
        return self._failure

    @property
    def retakes_at_once(self) -> bool:
        """Whether the last checkpoint's snapshot was thrown away here: all ranks take it again, and do not wait."""
        return self._retake is not None and self._retake.thrown_away

    @property
    def retaken_tag(self) -> str | None:
        """The name of the last checkpoint, if a snapshot of it was thrown away: that which is taken again gets it."""
        return self._retake.intent.tag if self._retake is not None else None

    @property
    def taken_over(self) -> str | None:
        """The error, once another trainer has taken over the run; nothing more is committed then."""
        return self._taken_over

    @property
    def stats(self) -> SaveStats:
        """What saving has cost so far."""
        return self._stats

    @property
    def failed(self) -> bool:
        """Whether the last save failed and no other is in progress."""
        return self._failure is not None and self._in_flight is None

    @property
    def age(self) -> str:
        """How old the last commit is, for messages."""
        return self._stats.age(self._runtime.monotonic_s())

    @property
    def now_s(self) -> float:
        """The time by a monotonic clock."""
        return self._runtime.monotonic_s()

    def may_retry(self) -> bool:
        """Whether the pause after a failed save is over."""
        return self._pause.is_over(self._runtime.monotonic_s())

    def go_on(self, position: Position) -> None:
        """Continue saving from this position, whose checkpoint the tables hold."""
        self._position = position

    def begin(self, intent: Intent) -> None:
        """A snapshot is being taken. If an observer raises, the error propagates and no save is in progress."""
        begun: list[SaveObserver] = []
        try:
            for observer in self._observers:
                observer.begin(intent.kind)
                begun.append(observer)
        except BaseException:
            for observer in begun:
                observer.failed(intent.kind)
            raise
        self._in_flight = InFlight(intent=intent)

    def taken(self, intent: Intent, stall_s: float, *, device_bytes: int = 0) -> None:
        """The snapshot is complete, and the loop waited this long for it; so much of it is still on devices."""
        self._stats.count_snapshot(stall_s, checkpoint=intent.kind is not Kind.PRIORITY)
        self._tell(
            SnapshotTaken(
                checkpoint=intent.checkpoint,
                step=intent.step,
                term=intent.term,
                kind=intent.kind,
                tag=intent.tag,
                at_s=self._runtime.wall_s(),
                stall_s=stall_s,
                device_bytes=device_bytes,
            )
        )

    def awaited(self, checkpoint: str) -> InFlight | None:
        """The save in progress, if it is this one: a report may be about one that was given up."""
        in_flight = self._in_flight
        return in_flight if in_flight is not None and in_flight.intent.checkpoint == checkpoint else None

    def committed(self, info: CheckpointInfo, state: Sequence[PieceDigest] = ()) -> None:
        """The save in progress is committed; ``state`` digests its contents other than rows."""
        ended = self._end()
        self._pause.end()
        for observer in self._observers:
            observer.committed(info.kind, state)
        self._tell(SaveCommitted(info=info, at_s=self._runtime.wall_s()))
        if ended.is_priority:
            self._stats.count_priority(info.size_bytes)
            return
        self._position = self._position.after(info, fidelities(ended.intent.stored))
        self._failure = self._retake = None
        self._stats.count_commit(info.step, self._runtime.monotonic_s())

    def give_up(self, why: str, *, elsewhere: bool = False) -> None:
        """The save in progress will not be committed; its rows stay marked and go into the next one.

        ``elsewhere``: another writer gave it up, and has said so itself if there was something wrong with it.
        """
        ended = self._end()
        for observer in self._observers:
            observer.failed(ended.intent.kind)
        if ended.is_priority:
            self._give_up_rows(ended, why, elsewhere=elsewhere)
            return
        self._failure = f"the checkpoint of step {ended.intent.step} was not committed: {why}"
        self._retake = ended if ended.thrown_away or elsewhere else None
        self._count_failure(ended.intent.step, why, ended.intent, at_once=ended.thrown_away)

    def refuse(self, step: int, why: str) -> None:
        """A checkpoint that is due cannot even be taken."""
        self._failure = f"the checkpoint of step {step} was not taken: {why}"
        self._retake = None
        self._count_failure(step, why)

    def skip(self) -> bool:
        """A checkpoint is due but skipped: the save in progress takes too long. False if that was known already."""
        known = self._expect()
        self._in_flight = replace(known, skipped=True)
        self._stats.skipped += not known.skipped
        return not known.skipped

    def delay_rows(self) -> bool:
        """A priority save is due, but must wait for the save in progress. False if that was known already."""
        known = self._expect()
        self._in_flight = replace(known, delayed_rows=True)
        self._stats.priority_late += not known.delayed_rows
        return not known.delayed_rows

    def call_off(self) -> None:
        """Something newer is due; a cancelled priority save is no loss then."""
        known = self._expect()
        self._in_flight = replace(known, unwanted=known.is_priority)

    def ask(self, problem: str = "") -> None:
        """An agent is asked for the outcome of the save in progress, because of this problem."""
        known = self._expect()
        self._in_flight = replace(known, asked=True, problem=problem or known.problem)

    def wait_for_buffer(self) -> None:
        """Count a snapshot that did not fit in the buffer."""
        self._stats.buffer_waits += 1

    def wait_for_device(self) -> None:
        """Count a snapshot that did not fit in the buffers of its devices."""
        self._stats.device_waits += 1

    def drained(self, stall_s: float, drain_s: float, size_bytes: int, *, sliced: bool = False) -> None:
        """A snapshot has left its device: training waited this long for it, all in all, and did not wait that long."""
        self._stats.count_drain(stall_s, drain_s, size_bytes)
        self._stats.sliced += sliced

    def throw_away(self, why: str) -> None:
        """The snapshot of the save in progress cannot be used: another one is due at once."""
        self._in_flight = replace(self._expect(), thrown_away=True, problem=f"its snapshot was thrown away: {why}")
        self._stats.thrown_away += 1

    def lose_agent(self) -> None:
        """Count an agent that died."""
        self._stats.agent_deaths += 1

    def arranged(self, stats: GridStats) -> None:
        """Record what rearranging the grid has done."""
        self._stats.grid = stats

    def meter(self, pls: float | None) -> None:
        """Record the portion of lost samples so far."""
        self._stats.pls = pls

    def recovered(
        self, what: Happening, *, step: int, checkpoint_step: int, since_s: float, lost_share: float = 1.0
    ) -> None:
        """Training is at ``step`` again, after a recovery that began at ``since_s``."""
        self._tell(
            Recovery(
                what=what,
                step=step,
                checkpoint_step=checkpoint_step,
                term=self._position.term,
                at_s=self._runtime.wall_s(),
                duration_s=self.now_s - since_s,
                lost_share=lost_share,
                pls=self._stats.pls,
            )
        )

    def raise_term(self, term: int) -> None:
        """Later saves belong to this term."""
        self._position = replace(self._position, term=term)

    def drop_baseline(self) -> None:
        """The run has dropped what the next save would depend on."""
        self._position = self._position.without_baseline()

    def lose_run(self, to: str) -> None:
        """Another trainer has taken over the run."""
        self._taken_over = to

    def _expect(self) -> InFlight:
        assert self._in_flight is not None
        return self._in_flight

    def _end(self) -> InFlight:
        ended, self._in_flight = self._expect(), None
        return ended

    def _count_failure(self, step: int, why: str, intent: Intent | None = None, *, at_once: bool = False) -> None:
        self._stats.failed += 1
        pause_s = 0.0 if at_once else self._pause.begin(self._runtime.monotonic_s())
        self._tell_given_up(step, why, pause_s, intent)
        told = "%s; the next save, in %.0f s at the earliest, includes its rows; %s"
        logger.warning(told, self._failure, pause_s, self.age)

    def _give_up_rows(self, ended: InFlight, why: str, *, elsewhere: bool) -> None:
        """A failed priority save is not a failed checkpoint: the next one chooses the same rows and newer ones."""
        if ended.unwanted:
            return
        self._stats.priority_failed += 1
        pause_s = self._pause.begin(self._runtime.monotonic_s())
        self._tell_given_up(ended.intent.step, why, pause_s, ended.intent)
        level = logging.DEBUG if elsewhere else logging.WARNING
        logger.log(level, "the rows chosen at step %d were not saved: %s", ended.intent.step, why)

    def _tell_given_up(self, step: int, why: str, pause_s: float, intent: Intent | None) -> None:
        """``intent``: of the save that was taken; None if there is none."""
        self._tell(
            SaveGivenUp(
                checkpoint=intent.checkpoint if intent is not None else None,
                step=step,
                term=self._position.term,
                kind=intent.kind if intent is not None else None,
                at_s=self._runtime.wall_s(),
                reason=why,
                retry_s=pause_s,
                last_commit_step=self._stats.last_commit_step,
            )
        )
