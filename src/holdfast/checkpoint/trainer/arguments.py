"""Validates the Checkpointer's arguments up front: a mistake must not surface at the first save."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.track.row_local import RowLocal
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.training.wrappers import unwrapped
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

Declared = Optimizer | RowLocal  # an optimizer as a user hands it over


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
class TrainingArguments:
    """The objects to save."""

    models: Mapping[str, nn.Module]
    optimizers: Sequence[Optimizer]
    row_local: Sequence[Optimizer]  # those of them that were declared so
    loader: Any
    extra: Mapping[str, Any]
    tables: Mapping[str, nn.Parameter]  # beside those that are found in the models


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


def as_models(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """One model, or several by name."""
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping) and model and all(isinstance(item, nn.Module) for item in model.values()):
        return dict(model)
    raise ConfigurationError(f"model= takes an nn.Module or a dict of them by name, not {type(model).__name__}")


def as_optimizers(optimizer: Declared | Sequence[Declared]) -> list[Optimizer]:
    """One optimizer or several, without wrappers that have no state."""
    given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    found = [unwrapped(item.optimizer if isinstance(item, RowLocal) else item) for item in given]
    if all(isinstance(item, Optimizer) for item in found):
        return found
    raise ConfigurationError(f"optimizer= takes a torch optimizer or a list of them, not {type(optimizer).__name__}")


def as_row_local(optimizer: Declared | Sequence[Declared]) -> list[Optimizer]:
    """The optimizers that were declared row-local."""
    given = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    return as_optimizers([item for item in given if isinstance(item, RowLocal)])


def require(name: str, value: object, kind: type) -> None:
    """Refuse a policy that is none, or the class of one where one is meant."""
    if not isinstance(value, kind):
        hint = f"{value.__name__}()" if isinstance(value, type) else meant_by(name, value) or f"a {kind.__name__}"
        raise ConfigurationError(f"{name}={value!r} is not valid; pass {hint}")


def as_metric(name: str, value: object) -> Any:
    """A number, or a tensor that holds one and is not looked at before a save (that would wait for the device)."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return value.detach()
        raise ConfigurationError(f"metric {name!r} has shape {tuple(value.shape)}; pass a single number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigurationError(f"metric {name!r} is {value!r}; pass a number") from None


def require_same_tables(tables: Sequence[Table], agreement: Agreement) -> None:
    """All ranks must hold the same tables: each saves its share of the rows of every one."""
    ours = [[table.name, table.rows, list(table.row_shape), str(table.parameter.dtype)] for table in tables]
    theirs = agreement.broadcast(ours)
    if agreement.any(ours != theirs):
        differing = next((a for a, b in zip(ours, theirs, strict=False) if a != b), "their number")
        raise ConfigurationError(
            f"the ranks hold different tables (on rank {agreement.rank}: {differing}): every rank must hold all of "
            "them, as under DDP. Sharded tables are not supported in this release"
        )


def require_known_tables(precision: Precision, tables: Sequence[Table]) -> None:
    """A precision for a table that does not exist is a mistake in its name."""
    names = [table.name for table in tables]
    for name in precision.names if isinstance(precision, PerTable) else ():
        if name not in names:
            known = ", ".join(names) or "none"
            raise ConfigurationError(
                f"precision= names table {name!r}, which the model does not have; its tables are {known}"
            )
