"""From a request, and the trainer's position, to the intent that all ranks follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.snapshot.changed import ChangedShares
from holdfast.checkpoint.trainer.position import Position, fidelities
from holdfast.checkpoint.training.data_place import NOWHERE, DataPlace
from holdfast.format.catalog import Intent, checkpoint_id
from holdfast.policy import Grid, Overlap, Precision, Strategy, StrategyContext
from holdfast.runtime import SYSTEM, Runtime
from holdfast.types import EXACTLY, Kind, Stored

CountChanges = Callable[[Mapping[str, Stored]], ChangedShares]  # by how tables are to be stored, those not exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A save of one step."""

    step: int
    tag: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    place: DataPlace = NOWHERE
    priority: bool = False  # of the rows that come first, between two checkpoints
    pls: Mapping[str, Any] | None = None  # the meter of lost samples, as of this checkpoint


class SavePlanner:
    """Asks the policies what a save should be: its kind, what it depends on, how precisely it stores each table."""

    def __init__(
        self,
        *,
        strategy: Strategy,
        precision: Precision,
        overlap: Overlap,
        tables: Mapping[str, str],
        world: int,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._strategy = strategy
        self._precision = precision
        self._overlap = overlap
        self._tables = tables  # the names of whole tables, by those that tables are stored under
        self._world = world
        self._runtime = runtime
        self._stored: tuple[int, dict[str, Stored]] | None = None

    def intend(self, request: SaveRequest, position: Position, count: CountChanges) -> Intent:
        """The intent; rank 0's applies to all. ``count`` returns what changed, if the strategy needs it."""
        stored = {} if request.priority else self.stored(position)
        kind = Kind.PRIORITY if request.priority else self._kind(position, stored, count)
        base = {Kind.FULL: None, Kind.DIFFERENTIAL: position.baseline}.get(kind, position.checkpoint)
        return Intent(
            checkpoint=checkpoint_id(request.step, position.term, self._runtime.token()),
            step=request.step,
            term=position.term,
            kind=kind,
            parent=position.checkpoint,
            base=base,
            world=self._world,
            created_s=self._runtime.wall_s(),
            overlap=self._overlap.value,
            tag=request.tag,
            metrics=request.metrics,
            restores=position.restores,
            stored=stored,
        )

    def stored(self, position: Position) -> dict[str, Stored]:
        """How a checkpoint from here stores the tables that it does not store exactly."""
        if self._stored is None or self._stored[0] != position.restores:  # all that it is decided from
            decided = {name: self._precision.decide(whole, position.restores) for name, whole in self._tables.items()}
            known = {name: stored for name, stored in decided.items() if stored != EXACTLY}
            self._stored = (position.restores, known)
        return self._stored[1]

    @property
    def counts_changes(self) -> bool:
        """Whether the strategy decides by what changed."""
        return self._strategy.counts_changes

    def in_grid(self, kind: Kind) -> bool:
        """Whether a grid rearranges the rows of such a checkpoint."""
        return isinstance(self._strategy, Grid) and kind is Kind.INCREMENTAL

    def _kind(self, position: Position, stored: Mapping[str, Stored], count: CountChanges) -> Kind:
        """The kind of the due checkpoint, with its tables stored like this."""
        if position.is_too_coarse(fidelities(stored)):
            return Kind.FULL
        changed = count(stored) if self._strategy.counts_changes else None
        context = StrategyContext(
            baseline_exists=position.baseline is not None,
            deltas=position.deltas,
            increment_share=changed.increment if changed else None,
            changed_share=changed.above_baseline if changed else None,
        )
        return self._strategy.decide(context)
