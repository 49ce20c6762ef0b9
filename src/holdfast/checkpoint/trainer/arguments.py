"""Validates the Checkpointer's arguments up front: a mistake must not surface at the first save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.track.row_local import RowLocal
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.training.wrappers import unwrapped
from holdfast.errors import ConfigurationError

Declared = Optimizer | RowLocal  # an optimizer as a user hands it over


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingArguments:
    """The objects to save."""

    models: Mapping[str, nn.Module]
    optimizers: Sequence[Optimizer]
    row_local: Sequence[Optimizer]  # those of them that were declared so
    loader: Any
    extra: Mapping[str, Any]
    tables: Mapping[str, nn.Parameter]  # beside those that are found in the models
    keyed: Sequence[KeyedRows] = ()


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
    """All ranks must know the same tables: each saves its share of the rows of every one."""
    ours = [[table.name, *table.whole_shape, list(table.row_shape), str(table.parameter.dtype)] for table in tables]
    theirs = agreement.broadcast(ours)
    if agreement.any(ours != theirs):
        differing = next((a for a, b in zip(ours, theirs, strict=False) if a != b), "their number")
        raise ConfigurationError(
            f"the ranks hold different tables (on rank {agreement.rank}: {differing}): every rank must have all of "
            "them, with the same shapes and types, as under DDP or in one plan of TorchRec"
        )
