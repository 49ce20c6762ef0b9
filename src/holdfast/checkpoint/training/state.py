"""A training loop's state except table rows: dense weights, optimizers, extras. Captured live, restored in place."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.training.divided import Divided, Undivided
from holdfast.checkpoint.training.dtensors import SwappedParameters, is_dtensor, local_of
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.optimizer_state import NamedOptimizer
from holdfast.checkpoint.training.optimizers import Optimizers, OwnState, list_names
from holdfast.checkpoint.training.placing import Source, write
from holdfast.checkpoint.training.scatter import replaced, replaced_in_optimizer
from holdfast.checkpoint.training.tables import Table, buffers_of, join_names, parameters_of, stable_modules
from holdfast.errors import ConfigurationError, ModelMismatch, UnsupportedState
from holdfast.format.state import is_weights_only
from holdfast.format.tree import encode_tree
from holdfast.types import ColumnSpec

logger = logging.getLogger("holdfast")

_Walked = dict[str, list[tuple[str, nn.Module]]]  # the modules of each model, by their paths


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a restore that was not strict left as it was."""

    missing: tuple[str, ...] = ()  # in the model, not in the checkpoint
    unexpected: tuple[str, ...] = ()  # in the checkpoint, not in the model
    changed: tuple[str, ...] = ()  # in both, but they do not fit; says how
    became_tables: tuple[str, ...] = ()  # restored from what was a dense parameter in the checkpoint


class TrainingState:
    """The models, optimizers and extras of one training loop, by names that wrappers do not change.

    Nothing is cached between calls: parameters and buffers are looked up where the modules hold them now.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        extra: Mapping[str, Any],
        tables: Sequence[Table],
        divided: Divided | None = None,
        swapped: SwappedParameters | None = None,
    ) -> None:
        for name, value in extra.items():
            _require_stateful(name, value)
        self._models = dict(models)
        self._divided = divided or Undivided()
        self._optimizers = (*optimizers, *self._divided.optimizers)
        self._extra = dict(extra)
        self._swapped = swapped
        # Of the strips of one table, that which is held here stands for all.
        self._tables = {table.identity: table for table in sorted(tables, key=_is_here)}
        self._left_alone: set[int] = set()  # tables whose optimizer state did not fit
        self._unfinished: tuple[OwnState, ...] = ()

    def check(self) -> int:
        """Refuse, by its path, what could not be stored (what optimizers add is checked after their first steps).

        The bytes of its tensors, for whoever plans room for it.
        """
        here = replaced(self.capture(), lambda name, tensor: local_of(tensor))
        return sum(tensor.numel() * tensor.element_size() for tensor in encode_tree(here).tensors)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse, by its path, what an optimizer keeps by now and could not be stored."""
        for table in self._tables.values():
            if table.optimizer is optimizer:
                table.spec()
        kind = type(optimizer).__name__
        here = replaced_in_optimizer(
            self._name(optimizer, self.parameter_names()).capture(), kind, lambda name, tensor: local_of(tensor)
        )
        encode_tree(here, root=kind)

    def parameter_names(self) -> dict[int, str]:
        """What each parameter is called, by its identity."""
        return _by_identity(self._parameters())

    def capture(self) -> dict[str, Any]:
        """A tree of live tensors: the caller copies them before training continues."""
        self._divided.read_options()
        walked = self._walk()  # once: it is most of the work
        parameters = self._parameters(walked)
        return {
            "model": self._dense(walked, parameters),
            "modules": {name: module.get_extra_state() for name, module in self._with_extra_state(walked).items()},
            "optimizers": self._named(parameters).capture(),
            "extra": self.capture_extra(),
        }

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All of them."""
        return self._optimizers

    @property
    def is_plain(self) -> bool:
        """Whether modules and optimizers alone decide what is captured: no table is divided, or found by keys."""
        return not (self._divided.tables or self._divided.optimizers or self._keyed())

    def modules(self) -> list[nn.Module]:
        """Every module of every model."""
        return [module for modules in self._walk().values() for _, module in modules]

    def capture_modules(self) -> dict[str, Any]:
        """What modules add to the state themselves."""
        return {name: module.get_extra_state() for name, module in self._with_extra_state().items()}

    def capture_extra(self) -> dict[str, Any]:
        """The state of extras."""
        return {name: _without_dtensors(name, _state_of(value)) for name, value in self._extra.items()}

    def dtensors(self) -> dict[str, Tensor]:
        """The DTensors among them, by names that are the same on all ranks."""
        if not any(is_dtensor(tensor) for tensor in (*self._parameters().values(), *self._dense().values())):
            return {}
        found: dict[str, Tensor] = {}
        replaced({"model": self._dense(), "optimizers": self._named().capture()}, found.__setitem__)
        return found

    def restore(self, tree: Mapping[str, Any], *, strict: bool = True) -> RestoreReport:
        """Write ``tree`` into the live objects, in place; optimizers and extras only where some were given.

        Raises ModelMismatch before anything is written, unless ``strict`` is off: then whatever fits is restored, types
        are cast, and the rest is reported. ``finish`` comes when the tables' rows are restored as well.
        """
        self._say_weights_only(tree)
        report = self._compare(tree, casts=not strict)
        if strict:
            self._require_same(tree, report)
        self._restore_model(tree)
        left = self._restore_optimizers(tree)
        self._divided.write_options()
        refused = self._restore_extra(tree["extra"])
        if strict and refused:
            raise ModelMismatch("; ".join(refused))
        return replace(report, changed=(*report.changed, *left, *refused))

    def finish(self, *, strict: bool = True) -> tuple[str, ...]:
        """Load what must wait until the tables' rows are restored: state dicts of optimizers' own making.

        Says which were refused; raises ModelMismatch for them if ``strict``.
        """
        unfinished, self._unfinished = self._unfinished, ()
        refused = tuple(problem for own in unfinished if (problem := own.load()) is not None)
        if strict and refused:
            raise ModelMismatch("; ".join(refused))
        return refused

    def ensure_slots(self, table: Table, columns: Sequence[ColumnSpec]) -> dict[str, Tensor]:
        """The live slots to write a checkpoint's rows into, exactly ``columns``: created, replaced, removed as needed.

        Empty for a table that no optimizer holds, or whose optimizer ``restore`` had to leave as it was.
        """
        return {} if table.identity in self._left_alone else table.ensure_slots(columns)

    def _say_weights_only(self, tree: Mapping[str, Any]) -> None:
        if is_weights_only(tree) and (self._optimizers or self._extra):
            logger.warning(
                "the checkpoint holds weights only (it was imported): optimizers and extras keep their current state"
            )

    def _walk(self) -> _Walked:
        return {key: list(stable_modules(model)) for key, model in self._models.items()}

    def _parameters(self, walked: _Walked | None = None) -> dict[str, nn.Parameter]:
        named: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for key, modules in (walked or self._walk()).items():
            for name, parameter in parameters_of(modules, self._swapped).items():
                if id(parameter) not in seen:
                    named[join_names(key, name)] = parameter
                    seen.add(id(parameter))
        extra_tables = (table for identity, table in self._tables.items() if identity not in seen)
        return named | {table.name: table.parameter for table in extra_tables}

    def _dense(
        self, walked: _Walked | None = None, parameters: Mapping[str, nn.Parameter] | None = None
    ) -> dict[str, Tensor]:
        """Every parameter but the tables', and every persistent buffer."""
        walked = walked or self._walk()
        found = self._parameters(walked) if parameters is None else parameters
        named: dict[str, Tensor] = {
            name: parameter for name, parameter in found.items() if id(parameter) not in self._tables
        }
        stored = {identity for table in self._keyed() for identity in table.held_elsewhere()}
        for key, modules in walked.items():
            buffers = buffers_of(modules).items()
            named |= {join_names(key, name): buffer for name, buffer in buffers if id(buffer) not in stored}
        return named

    def _keyed(self) -> list[KeyedRows]:
        return [table for table in self._tables.values() if isinstance(table, KeyedRows)]

    def _with_extra_state(self, walked: _Walked | None = None) -> dict[str, nn.Module | KeyedRows]:
        modules = {
            join_names(key, path): module
            for key, found in (walked or self._walk()).items()
            for path, module in found
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }
        return {**modules, **{table.state_name: table for table in self._keyed()}}

    def _became_tables(self, tree: Mapping[str, Any]) -> dict[str, Table]:
        """Tables that were dense parameters in the checkpoint, by their parameter's name."""
        tables = {name: self._tables.get(id(parameter)) for name, parameter in self._parameters().items()}
        return {
            name: table
            for name, table in tables.items()
            if table is not None
            and table.extent is None
            and name in tree["model"]
            and _fits(tree["model"][name], table.parameter, casts=True)
        }

    def _named(self, parameters: Mapping[str, nn.Parameter] | None = None) -> Optimizers:
        names = _by_identity(self._parameters() if parameters is None else parameters)
        return Optimizers([self._name(optimizer, names) for optimizer in self._optimizers])

    def _name(self, optimizer: Optimizer, names: Mapping[int, str]) -> NamedOptimizer:
        return NamedOptimizer(optimizer=optimizer, names=names, tables=self._tables)

    def _require_same(self, tree: Mapping[str, Any], report: RestoreReport) -> None:
        named, stored = self._named(), tree["optimizers"]
        if is_weights_only(tree):
            problems: Sequence[str] = ()
        elif self._divided.tables:  # a plan may move a table from one optimizer to another of its kind
            problems = named.homeless(stored, some=len(self._optimizers) == len(self._divided.optimizers))
        else:
            problems = named.problems(stored)
        report = replace(report, changed=(*report.changed, *problems))
        if report.missing or report.unexpected or report.changed:
            raise ModelMismatch(_describe(report))

    def _compare(self, tree: Mapping[str, Any], *, casts: bool) -> RestoreReport:
        live = self._names(weights_only=is_weights_only(tree))
        stored = _names(tree, extra=bool(self._extra))
        dense = self._dense()
        became = self._became_tables(tree) if casts else {}
        changed = [
            f"{name} is {_form(dense[name])}, but {_form(value)} in the checkpoint"
            for name, value in tree["model"].items()
            if name in dense and not _fits(value, dense[name], casts=casts)
        ]
        return RestoreReport(
            missing=tuple(name for name in live if name not in stored),
            unexpected=tuple(name for name in stored if name not in live and name not in became),
            changed=tuple(changed),
            became_tables=tuple(table.name for table in became.values()),
        )

    def _names(self, *, weights_only: bool) -> dict[str, None]:
        if weights_only:
            return dict.fromkeys(self._dense())
        names = [*self._dense(), *(f"{name}._extra_state" for name in self._with_extra_state())]
        names += [f"extra {name!r}" for name in self._extra]
        return dict.fromkeys(names)

    def _restore_model(self, tree: Mapping[str, Any]) -> None:
        live = self._dense() | {name: table.parameter for name, table in self._became_tables(tree).items()}
        for name, value in tree["model"].items():
            if name in live and _fits(value, live[name], casts=True):
                write(value, live[name], f"tensor {name!r}")
        for name, module in self._with_extra_state().items():
            if name in tree["modules"]:
                module.set_extra_state(tree["modules"][name])

    def _restore_optimizers(self, tree: Mapping[str, Any]) -> tuple[str, ...]:
        """Give the optimizers their state, where weights are those it belongs to; says what was not restored."""
        live, stored = self._parameters(), tree["model"]
        skip = {name for name in live.keys() & stored.keys() if live[name].shape != stored[name].shape}
        restored = self._named().restore(tree["optimizers"], skip=skip)
        self._left_alone = self._tables.keys() - restored.parameters
        self._unfinished = restored.unfinished
        return restored.left

    def _restore_extra(self, stored: Mapping[str, Any]) -> list[str]:
        """Hand the extras their states; says which refused."""
        refused = []
        for name, value in self._extra.items():
            if name not in stored:
                continue
            try:
                _load_state(value, stored[name])
            except (LookupError, RuntimeError, TypeError, ValueError) as error:
                refused.append(f"extra {name!r} rejected its state: {error}")
        return refused


def dense_weights(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """The dense parameters and buffers in a captured tree, by their stable names."""
    return dict(tree["model"])


def _is_here(table: Table) -> bool:
    return table.optimizer is not None or table.rows > 0


def _by_identity(parameters: Mapping[str, nn.Parameter]) -> dict[int, str]:
    return {id(parameter): name for name, parameter in parameters.items()}


def _require_stateful(name: str, value: object) -> None:
    if isinstance(value, Optimizer):
        raise ConfigurationError(f"extra {name!r} is an optimizer; pass it as optimizer=[...]")
    methods = (getattr(value, method, None) for method in ("state_dict", "load_state_dict"))
    if not isinstance(value, torch.Generator) and not all(callable(method) for method in methods):
        raise ConfigurationError(
            f"extra {name!r} is a {type(value).__qualname__} without state_dict() and load_state_dict(): it could not "
            "be restored. Wrap it in an object that has them, or leave it out"
        )


def _state_of(value: Any) -> Any:
    return value.get_state() if isinstance(value, torch.Generator) else value.state_dict()


def _without_dtensors(name: str, state: Any) -> Any:
    """Its state, which only the first rank stores; raises UnsupportedState where it is divided over all of them."""
    if any(map(is_dtensor, state.values() if isinstance(state, Mapping) else ())):
        raise UnsupportedState(
            f"extra {name!r} holds a DTensor, of which each rank has a part, and only one saves extras. Pass a module "
            "as model={'name': module, ...}"
        )
    return state


def _load_state(value: Any, state: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(state)
    else:
        value.load_state_dict(copy.copy(state))  # some take entries out of what they are given


def _names(tree: Mapping[str, Any], *, extra: bool) -> dict[str, None]:
    names = [*tree["model"], *(f"{name}._extra_state" for name in tree["modules"])]
    names += [f"extra {name!r}" for name in tree["extra"]] if extra else []
    return dict.fromkeys(names)


def _fits(stored: Source, live: Tensor, *, casts: bool) -> bool:
    return stored.shape == live.shape and (casts or stored.dtype == live.dtype)


def _form(tensor: Source) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _describe(report: RestoreReport) -> str:
    found = {
        "in the model but not in the checkpoint": report.missing,
        "in the checkpoint but not in the model": report.unexpected,
        "different": report.changed,
    }
    parts = [f"{what}: {list_names(names)}" for what, names in found.items() if names]
    return f"{'; '.join(parts)}. Build the model as before, or pass strict=False to restore what matches"
