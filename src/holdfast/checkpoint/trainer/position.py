"""Where a trainer is in its run, and what its saves have cost so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.grid.stats import GridStats
from holdfast.format.catalog import Intent
from holdfast.format.state import JobState
from holdfast.types import CheckpointInfo, DeltaSizes, Kind, Stored


def fidelities(stored: Mapping[str, Stored]) -> dict[str, int]:
    """The fidelity of each table."""
    return {name: each.fidelity for name, each in stored.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a trainer took over, restored or committed last, and may build on."""

    term: int
    checkpoint: str | None = None  # the last one committed or restored
    step: int = 0  # of it
    baseline: str | None = None
    baseline_bytes: int = 0
    deltas: DeltaSizes = field(default_factory=DeltaSizes)  # since the baseline
    restores: int = 0  # of the model, ever
    coarsest: Mapping[str, int] = field(default_factory=dict)  # fidelity since the baseline, of tables not exact

    def after(self, info: CheckpointInfo, fidelity: Mapping[str, int]) -> Position:
        """The position once this checkpoint is committed, with its tables stored at this fidelity."""
        if info.kind is Kind.FULL:
            return Position(
                term=self.term,
                checkpoint=info.id,
                step=info.step,
                baseline=info.id,
                baseline_bytes=info.size_bytes,
                restores=self.restores,
                coarsest=fidelity,
            )
        fraction = info.size_bytes / max(1, self.baseline_bytes)
        return replace(
            self,
            checkpoint=info.id,
            step=info.step,
            deltas=self.deltas.with_next(fraction),
            coarsest=self.coarsest_with(fidelity),
        )

    def job_at(self, intent: Intent, pls: Mapping[str, float | None] | None) -> JobState:
        """What a checkpoint from here says of the job; ``restored`` reads it back."""
        fidelity = fidelities(intent.stored)
        return JobState(
            deltas=self.deltas,
            restores=intent.restores,
            coarsest=fidelity if intent.kind is Kind.FULL else self.coarsest_with(fidelity),
            pls=pls,
        )

    @classmethod
    def restored(
        cls, info: CheckpointInfo, job: JobState, *, baseline: CheckpointInfo, term: int, counts: bool = True
    ) -> Position:
        """Where saving continues after a restore of this checkpoint, which depends on ``baseline``.

        ``counts``: the whole model was restored, and not only what one process holds of it.
        """
        own = info.size_bytes / max(1, baseline.size_bytes)
        return cls(
            term=term,
            checkpoint=info.id,
            step=info.step,
            baseline=baseline.id,
            baseline_bytes=baseline.size_bytes,
            deltas=DeltaSizes() if info.kind is Kind.FULL else job.deltas.with_next(own),
            restores=job.restores + counts,
            coarsest=job.coarsest,
        )

    def coarsest_with(self, fidelity: Mapping[str, int]) -> dict[str, int]:
        """What the tables' precision comes to with one more checkpoint on top of the baseline."""
        return {name: min(fine, self.coarsest.get(name, fine)) for name, fine in {**self.coarsest, **fidelity}.items()}

    def is_too_coarse(self, fidelity: Mapping[str, int]) -> bool:
        """Whether a table is to be stored more precisely from now on: rows that never change would stay as they are."""
        return any(name not in fidelity or fidelity[name] > fine for name, fine in self.coarsest.items())

    def without_baseline(self) -> Position:
        """The position once the run has dropped its baseline: the next checkpoint is a new one."""
        return Position(term=self.term, checkpoint=self.checkpoint, step=self.step, restores=self.restores)


@dataclass(slots=True, kw_only=True)
class SaveStats:
    """What saving has cost so far. Times are in seconds.

    Args:
        snapshots: Snapshots taken for checkpoints.
        committed: Checkpoints committed.
        failed: Checkpoints given up.
        skipped: Saves skipped because the previous one was still being written.
        agent_deaths: Agents that died or had to be replaced.
        last_stall_s: How long the loop waited for the last snapshot.
        total_stall_s: How long the loop waited for all snapshots.
        buffer_waits: Snapshots that had to wait because they were larger than the buffer.
        device_waits: Snapshots that had to be waited for because they were larger than the device buffer.
        drained: Snapshots that left their device while training went on.
        sliced: Those of them that were larger than the device buffer and were read in slices, between steps.
        drained_bytes: What they took of the device buffer, encoded.
        last_drain_s: How long the last of them took to leave it.
        thrown_away: Snapshots that were taken on a device and could not be used; they were taken again at once.
        last_commit_step: The step of the last commit. None: nothing was committed yet.
        last_commit_s: When that was, by the monotonic clock.
        priority_saves: Priority saves committed.
        priority_bytes: The bytes they wrote.
        priority_failed: Priority saves given up.
        priority_late: Priority saves that had to wait for a save in progress.
        pls: The portion of lost samples. None: not metered.
        grid: What rearranging increments has done.
    """

    snapshots: int = 0
    committed: int = 0
    failed: int = 0
    skipped: int = 0
    agent_deaths: int = 0
    last_stall_s: float = 0.0
    total_stall_s: float = 0.0
    buffer_waits: int = 0
    device_waits: int = 0
    drained: int = 0
    sliced: int = 0
    drained_bytes: int = 0
    last_drain_s: float = 0.0
    thrown_away: int = 0
    last_commit_step: int | None = None
    last_commit_s: float | None = None
    priority_saves: int = 0
    priority_bytes: int = 0
    priority_failed: int = 0
    priority_late: int = 0
    pls: float | None = None
    grid: GridStats = field(default_factory=GridStats)

    def count_snapshot(self, stall_s: float, *, checkpoint: bool = True) -> None:
        """Count a sealed snapshot, and the time the loop waited for it."""
        self.snapshots += checkpoint
        self.last_stall_s = stall_s
        self.total_stall_s += stall_s

    def count_drain(self, stall_s: float, drain_s: float, size_bytes: int) -> None:
        """Count a snapshot that has left its device; what training waited for it is more than was counted before."""
        self.drained += 1
        self.drained_bytes += size_bytes
        self.last_drain_s = drain_s
        self.total_stall_s += stall_s - self.last_stall_s
        self.last_stall_s = stall_s

    def count_commit(self, step: int, now_s: float) -> None:
        """Count a committed checkpoint."""
        self.committed += 1
        self.last_commit_step = step
        self.last_commit_s = now_s

    def count_priority(self, size_bytes: int) -> None:
        """Count a committed priority save."""
        self.priority_saves += 1
        self.priority_bytes += size_bytes

    def age(self, now_s: float) -> str:
        """How old the last commit is, for messages."""
        if self.last_commit_s is None:
            return "nothing has been committed by this trainer yet"
        return f"the last commit is {now_s - self.last_commit_s:.0f} s old"


class Pause:
    """Waits longer after each failure: a snapshot at every step of an outage would cost more than the outage."""

    _FIRST_S = 5.0
    _LONGEST_S = 600.0

    def __init__(self) -> None:
        self._next_s = self._FIRST_S
        self._until_s = float("-inf")

    def begin(self, now_s: float) -> float:
        """Start to wait after a failure; returns for how long."""
        wait_s = self._next_s
        self._until_s = now_s + wait_s
        self._next_s = min(2 * wait_s, self._LONGEST_S)
        return wait_s

    def is_over(self, now_s: float) -> bool:
        """Whether it is time to try again."""
        return now_s >= self._until_s

    def end(self) -> None:
        """Forget earlier failures."""
        self._next_s = self._FIRST_S
        self._until_s = float("-inf")
