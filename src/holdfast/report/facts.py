"""Everything a report says about a run, read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.inspect.grid_picture import GridPicture
from holdfast.checkpoint.inspect.stored_precision import StoredRows
from holdfast.cluster.record import JobRecord
from holdfast.errors import CheckpointNotFound, DamagedData
from holdfast.events import HistoryEvent
from holdfast.format.dcp_state import is_dcp
from holdfast.format.state import JobState, SavedState
from holdfast.policy.pls import PlsMeter
from holdfast.report.losses import Losses, losses
from holdfast.run import Run
from holdfast.runtime import SYSTEM
from holdfast.types import CheckpointInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run as its newest readable catalog states it. What cannot be read is missing, and among the problems."""

    url: str
    made_s: float
    run: str
    term: int
    checkpoints: tuple[CheckpointInfo, ...]  # oldest first
    garbage: int  # folders and objects that wait for deletion
    history: tuple[HistoryEvent, ...]
    grid: GridPicture | None
    stored: tuple[StoredRows, ...]
    restores: int | None  # of the model, ever, up to the newest checkpoint
    meter: PlsMeter | None
    jobs: tuple[JobRecord, ...]  # of a cluster
    problems: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all checkpoints."""
        return sum(info.size_bytes for info in self.checkpoints)

    @property
    def full_bytes(self) -> int:
        """What they would take if each were full."""
        return sum(info.full_bytes for info in self.checkpoints)

    @property
    def stall_s(self) -> float | None:
        """How long training waited for them; None if no checkpoint records it."""
        known = [info.stall_s for info in self.checkpoints if info.stall_s is not None]
        return sum(known) if known else None

    @property
    def losses(self) -> tuple[Losses | None, ...]:
        """What each event of the history cost."""
        return losses(self.history, self.checkpoints)

    @property
    def loss(self) -> Losses:
        """What all failures together cost."""
        return sum((each for each in self.losses if each is not None), start=Losses())

    @property
    def span_s(self) -> float:
        """From the first thing that is known to the last."""
        times = [info.created_s for info in self.checkpoints] + [event.at_s for event in self.history]
        return max(times) - min(times) if times else 0.0


def gather(run: Run) -> RunFacts:
    """Read the run; raises CheckpointNotFound on an empty one."""
    head = run.head()
    problems = [f"{name} cannot be read; this is the state before it" for name in head.damaged]
    readable = _Readable(problems) if _live(head) else None
    tree: Any = readable.read(lambda: run.state(tensors=False), None) if readable else None
    job = readable.read(lambda: _job(tree), None) if readable and tree is not None else None
    return RunFacts(
        url=run.url,
        made_s=SYSTEM.wall_s(),
        run=head.catalog.run,
        term=head.catalog.term,
        checkpoints=tuple(entry.info for entry in head.entries),
        garbage=len(head.garbage),
        history=run.history(),
        grid=readable.read(run.grid, None) if readable else None,
        stored=readable.read(run.stored, ()) if readable else (),
        restores=job.restores if job is not None else None,
        meter=find_meter(tree),
        jobs=run.jobs(),
        problems=tuple(dict.fromkeys(problems)),
    )


class _Readable:
    """Reads what may be damaged."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def read(self, what: Callable[[], T], otherwise: T) -> T:
        """The value, or the other one where it cannot be read, which becomes a problem."""
        try:
            return what()
        except (CheckpointNotFound, DamagedData) as error:
            self._problems.append(str(error))
            return otherwise


def _job(tree: object) -> JobState | None:
    if is_dcp(tree):
        return None
    shared = SavedState.from_tree(tree, name="the newest checkpoint").shared
    return shared.job if shared is not None else None


def find_meter(state: Any) -> PlsMeter | None:
    """The PLS meter in a state tree, wherever it was put."""
    if isinstance(state, Mapping):
        if state.keys() == {field.name for field in fields(PlsMeter)}:
            return PlsMeter.from_dict(state)
        children: Sequence[Any] = list(state.values())
    else:
        children = state if isinstance(state, list | tuple) else []
    return next((found for child in children if (found := find_meter(child)) is not None), None)


def _live(head: Head) -> bool:
    return any(not entry.info.abandoned for entry in head.entries)
