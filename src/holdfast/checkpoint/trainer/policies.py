"""Where a run is kept and by which policies it is saved: what a trainer and a server of a cluster have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.policy import (
    Overlap,
    Partial,
    PerTable,
    Precision,
    Priority,
    Retention,
    SavePolicy,
    Strategy,
    default_strategy,
)
from holdfast.policy.slips import meant_by
from holdfast.storage import MemoryStore, Store, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """Where a run is kept."""

    url: str | os.PathLike[str] | Store
    options: Mapping[str, str] | None  # of an object store's client

    def open(self, patience_s: float) -> Store:
        """The store, which will be tried for so long when it does not answer. Nothing is contacted yet."""
        if isinstance(self.url, str | os.PathLike):
            return open_store(self.url, options=self.options, patience_s=patience_s)
        return self.url

    def is_of_this_process(self, opened: Store) -> bool:
        """Whether only this process can open the store, so that the agent must be a thread of it."""
        return not isinstance(self.url, str | os.PathLike) or isinstance(opened, MemoryStore)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies that decide about saves."""

    save: SavePolicy
    strategy: Strategy  # of checkpoints
    partial: Partial | None  # where lost parts are recovered automatically
    precision: Precision
    retention: Retention
    overlap: Overlap

    def __post_init__(self) -> None:
        require("save", self.save, SavePolicy)
        require("strategy", self.strategy, Strategy)
        require("precision", self.precision, Precision)
        require("retention", self.retention, Retention)
        require("overlap", self.overlap, Overlap)

    @property
    def priority(self) -> Priority | None:
        """Which rows are saved first, between two checkpoints."""
        return self.partial.priority if self.partial is not None else None


def as_policies(*, strategy: Strategy | None, retention: Retention, **others: Any) -> Policies:
    """The policies, with the strategy that fits the retention where none is given."""
    strategy = default_strategy(retention) if strategy is None else strategy
    partial = strategy if isinstance(strategy, Partial) else None
    consistent = strategy if partial is None else partial.consistent
    return Policies(strategy=consistent, partial=partial, retention=retention, **others)


def require(name: str, value: object, kind: type) -> None:
    """Refuse a policy that is none, or the class of one where one is meant."""
    if not isinstance(value, kind):
        hint = f"{value.__name__}()" if isinstance(value, type) else meant_by(name, value) or f"a {kind.__name__}"
        raise ConfigurationError(f"{name}={value!r} is not valid; pass {hint}")


def require_known_tables(precision: Precision, names: Sequence[str]) -> None:
    """A precision for a table that does not exist is a mistake in its name."""
    for name in precision.names if isinstance(precision, PerTable) else ():
        if name not in names:
            known = ", ".join(names) or "none"
            raise ConfigurationError(
                f"precision= names table {name!r}, which the model does not have; its tables are {known}"
            )
