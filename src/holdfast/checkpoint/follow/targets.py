"""What an update is written into: a model being served, or weights without a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.checkpoint.restore.table_match import require_same_tables, shape_problem
from holdfast.checkpoint.training.forms import has_form
from holdfast.checkpoint.training.state import TrainingState, dense_weights
from holdfast.checkpoint.training.tables import find_tables, weight_name
from holdfast.errors import ModelMismatch
from holdfast.format.dtypes import torch_dtype
from holdfast.types import TableSpec

logger = logging.getLogger("holdfast")


class Target(Protocol):
    """Weights that follow a run."""

    @property
    def is_served(self) -> bool:
        """Whether the weights are in constant use: if so, even a full reload is staged before it is written."""
        ...

    def queues(self) -> set[torch.device]:
        """The devices on which work with them may still be waiting when the call that asked for it has returned."""
        ...

    def fit(self, specs: Mapping[str, TableSpec]) -> dict[str, Tensor]:
        """Where the weights of these tables go, by name; raises ModelMismatch before anything is written."""
        ...

    def write_dense(self, tree: Mapping[str, Any]) -> None:
        """Take over the dense part; raises ModelMismatch before anything is written."""
        ...


class ServedModel:
    """A model in use, written in place."""

    is_served = True

    def __init__(
        self, models: Mapping[str, nn.Module], tables: Mapping[str, nn.Parameter], *, strict: bool = True
    ) -> None:
        found = find_tables(models, (), tables)
        self._models = tuple(models.values())
        self._parameters = {table.name: table.parameter for table in found}
        self._state = TrainingState(models, (), {}, found)
        self._strict = strict
        self._told: set[str] = set()

    def queues(self) -> set[torch.device]:
        """Every GPU that holds some of it: the tables' and the dense part's may differ."""
        held = (tensor for model in self._models for tensor in (*model.parameters(), *model.buffers()))
        return {tensor.device for tensor in (*held, *self._parameters.values()) if tensor.is_cuda}

    def fit(self, specs: Mapping[str, TableSpec]) -> dict[str, Tensor]:
        """The tables that match; with ``strict`` all of them must."""
        _require_numbers(specs)
        if self._strict:
            require_same_tables(specs, self._parameters, otherwise="apply what matches")
        live = self._parameters
        fitting = {name for name, spec in specs.items() if name in live and not shape_problem(spec, live[name])}
        self._tell("table", sorted(specs.keys() ^ live.keys() | specs.keys() - fitting))
        return {name: self._parameters[name].data for name in fitting}

    def write_dense(self, tree: Mapping[str, Any]) -> None:
        """Parameters, buffers and extra state of modules."""
        report = self._state.restore(tree, strict=self._strict)
        self._tell("parameter", [*report.missing, *report.unexpected, *report.changed])

    def _tell(self, what: str, names: list[str]) -> None:
        """Log once what is not updated."""
        if new := [name for name in names if name not in self._told]:
            self._told.update(new)
            logger.warning("not updated, model and checkpoint differ: %s %s", what, ", ".join(new))


class LooseWeights:
    """Weights of a checkpoint without its model; allocated as needed."""

    is_served = False

    def __init__(self) -> None:
        self.tables: dict[str, Tensor] = {}
        self.dense: dict[str, Tensor] = {}

    def queues(self) -> set[torch.device]:
        """None: they are in main memory."""
        return set()

    def fit(self, specs: Mapping[str, TableSpec]) -> dict[str, Tensor]:
        """Every table, kept where it has the same form as before."""
        _require_numbers(specs)
        before, self.tables = self.tables, {}
        for name, spec in specs.items():
            kept, dtype = before.pop(name, None), torch_dtype(spec.weight.dtype)
            fits = kept is not None and has_form(kept, spec.shape, dtype)
            self.tables[name] = kept if kept is not None and fits else torch.empty(spec.shape, dtype=dtype)
        return dict(self.tables)

    def named(self) -> dict[str, Tensor]:
        """All weights under their state_dict names."""
        return {weight_name(name): tensor for name, tensor in self.tables.items()} | self.dense

    def write_dense(self, tree: Mapping[str, Any]) -> None:
        """Keep the dense weights as read."""
        self.dense = dense_weights(tree)


def _require_numbers(specs: Mapping[str, TableSpec]) -> None:
    """Refuse tables whose rows are found by keys: weights alone would be found by the keys of another checkpoint."""
    if keyed := [name for name, spec in specs.items() if spec.is_keyed]:
        raise ModelMismatch(
            f"table {keyed[0]} finds its rows by keys, which a follower does not apply. Load each checkpoint with "
            "open_run(url).restore(model=..., keyed=...), or export it: an exported file holds the keys"
        )
