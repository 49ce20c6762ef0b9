"""What became of the saves: the one under way, how the last one failed, the position that the next one builds on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.trainer.contents import Contents
from holdfast.checkpoint.trainer.position import Pause, Position, SaveStats, fidelities
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken, TrainingEvent
from holdfast.format.catalog import Intent
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import CheckpointInfo, Kind

logger = logging.getLogger("holdfast")

Tell = Callable[[TrainingEvent], None]


@dataclass(slots=True, kw_only=True)
class InFlight:
    """A save between its snapshot and its outcome."""

    intent: Intent
    asked: bool = False  # an agent was asked what became of it
    problem: str = ""  # why it had to be asked
    skipped: bool = False  # another save was due meanwhile
    delayed_rows: bool = False  # a save of rows was due meanwhile
    unwanted: bool = False  # a checkpoint that is due holds its rows as well

    @property
    def is_priority(self) -> bool:
        """Whether it is no checkpoint but holds rows between two of them."""
        return self.intent.kind is Kind.PRIORITY


class Outcomes:
    """One save at a time: ``begin``, then ``committed`` or ``give_up``."""

    def __init__(self, contents: Contents, *, tell: Tell, runtime: Runtime = SYSTEM) -> None:
        self._contents = contents
        self._tell = tell
        self._runtime = runtime
        self._pause = Pause()
        self.in_flight: InFlight | None = None
        self.position = Position(term=0)
        self.failure: str | None = None  # of the last checkpoint that ended
        self.taken_over: str | None = None  # by another trainer: nothing more is committed
        self.stats = SaveStats()

    @property
    def failed(self) -> bool:
        """Whether the last save failed and no other is under way."""
        return self.failure is not None and self.in_flight is None

    @property
    def age(self) -> str:
        """How old the last commit is, for messages."""
        return self.stats.age(self._runtime.monotonic_s())

    @property
    def now_s(self) -> float:
        """By a monotonic clock."""
        return self._runtime.monotonic_s()

    def may_retry(self) -> bool:
        """Whether the pause after a failed save is over."""
        return self._pause.is_over(self._runtime.monotonic_s())

    def go_on(self, position: Position) -> None:
        """Save from here: the tables are those of this position's checkpoint."""
        self.position = position
        self._contents.start(restored=position.checkpoint is not None)

    def begin(self, intent: Intent) -> None:
        """A snapshot is being taken."""
        self.in_flight = InFlight(intent=intent)

    def taken(self, intent: Intent, stall_s: float) -> None:
        """Its snapshot is whole, after the loop waited for so long."""
        self.stats.count_snapshot(stall_s, checkpoint=intent.kind is not Kind.PRIORITY)
        self._tell(
            SnapshotTaken(
                checkpoint=intent.checkpoint,
                step=intent.step,
                term=intent.term,
                kind=intent.kind,
                tag=intent.tag,
                at_s=self._runtime.wall_s(),
                stall_s=stall_s,
            )
        )

    def awaited(self, checkpoint: str) -> InFlight | None:
        """The save under way, if it is this one: there may be news of one that was given up."""
        in_flight = self.in_flight
        return in_flight if in_flight is not None and in_flight.intent.checkpoint == checkpoint else None

    def committed(self, info: CheckpointInfo, state: Sequence[PieceDigest] = ()) -> None:
        """The save under way is in the run; ``state`` digests what it holds besides rows."""
        assert self.in_flight is not None
        ended, self.in_flight = self.in_flight, None
        self._pause.end()
        self._contents.committed(info.kind, state)
        self._tell(SaveCommitted(info=info, at_s=self._runtime.wall_s()))
        if ended.is_priority:
            self.stats.count_priority(info.size_bytes)
            return
        self.position = self.position.after(info, fidelities(ended.intent.stored))
        self.failure = None
        self.stats.count_commit(info.step, self._runtime.monotonic_s())

    def give_up(self, why: str) -> None:
        """The save under way will not be committed; its rows stay marked and go into the next one."""
        assert self.in_flight is not None
        ended, self.in_flight = self.in_flight, None
        self._contents.failed(ended.intent.kind)
        if ended.is_priority:
            self._give_up_rows(ended, why)
            return
        self.failure = f"the checkpoint of step {ended.intent.step} was not committed: {why}"
        self._count_failure(ended.intent.step, why, ended.intent)

    def refuse(self, step: int, why: str) -> None:
        """A checkpoint that is due cannot even be taken."""
        self.failure = f"the checkpoint of step {step} was not taken: {why}"
        self._count_failure(step, why)

    def recovered(
        self, what: Happening, *, step: int, checkpoint_step: int, since_s: float, lost_share: float = 1.0
    ) -> None:
        """Training stands at ``step`` again, after work on it since then."""
        self._tell(
            Recovery(
                what=what,
                step=step,
                checkpoint_step=checkpoint_step,
                term=self.position.term,
                at_s=self._runtime.wall_s(),
                duration_s=self.now_s - since_s,
                lost_share=lost_share,
                pls=self.stats.pls,
            )
        )

    def raise_term(self, term: int) -> None:
        """From now on saves are of this term."""
        self.position = replace(self.position, term=term)

    def _count_failure(self, step: int, why: str, intent: Intent | None = None) -> None:
        self.stats.failed += 1
        pause_s = self._pause.begin(self._runtime.monotonic_s())
        self._tell_given_up(step, why, pause_s, intent)
        told = "%s; the next save holds its rows, in %.0f s at the earliest; %s"
        logger.warning(told, self.failure, pause_s, self.age)

    def _give_up_rows(self, ended: InFlight, why: str) -> None:
        """A priority save that failed is no failed checkpoint: the next one chooses the same rows and newer ones."""
        if ended.unwanted:
            return
        self.stats.priority_failed += 1
        pause_s = self._pause.begin(self._runtime.monotonic_s())
        self._tell_given_up(ended.intent.step, why, pause_s, ended.intent)
        logger.warning("the rows chosen at step %d were not saved: %s", ended.intent.step, why)

    def _tell_given_up(self, step: int, why: str, pause_s: float, intent: Intent | None) -> None:
        """``intent``: of the save that was taken; None if there is none."""
        self._tell(
            SaveGivenUp(
                checkpoint=intent.checkpoint if intent is not None else None,
                step=step,
                term=self.position.term,
                kind=intent.kind if intent is not None else None,
                at_s=self._runtime.wall_s(),
                reason=why,
                retry_s=pause_s,
                last_commit_step=self.stats.last_commit_step,
            )
        )
