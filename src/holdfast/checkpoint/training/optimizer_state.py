"""One optimizer's state by its parameters' stable names, without the slots that are saved with table rows.

torch's own ``load_state_dict`` is not used: it casts fp32 state to a bf16 parameter's type and replaces tensors that a
captured graph may hold. An optimizer that overrides it gets its own called as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.training.dtensors import is_divided, is_dtensor
from holdfast.checkpoint.training.own_state import capture_own, keeps_own_state, load_own
from holdfast.checkpoint.training.placing import is_source
from holdfast.checkpoint.training.placing import place as place_tensor
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.training.wrappers import inner_optimizers
from holdfast.errors import ConfigurationError, UnsupportedState

# How the machine at hand computes a step, not what it computes: what the running code says stays.
_IMPLEMENTATION = frozenset({"capturable", "differentiable", "foreach", "fused"})
_ON_HOST = frozenset({"step", "mu_product"})  # scalars that torch's optimizers keep beside the CPU's loop
_SPARSE = "sparse_tensor"


class HeldParameter(NamedTuple):
    """A parameter, and the number of the group that holds it."""

    parameter: nn.Parameter
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptimizer:
    """An optimizer, the names of its parameters, and which of them are tables."""

    optimizer: Optimizer
    names: Mapping[int, str]  # by the parameter's identity
    tables: Mapping[int, Table]

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.optimizer).__name__

    def capture(self) -> dict[str, Any]:
        """The state as a tree of live tensors."""
        own = capture_own(self.optimizer, self._places()) if keeps_own_state(self.optimizer) else None
        parameters = {name: held.parameter for name, held in self.parameters().items()}
        return {  # after state_dict(): hooks of it may write into groups and state
            "kind": self.kind,
            "groups": [self._capture_group(group) for group in self.optimizer.param_groups],
            "state": {name: self._capture_state(held) for name, held in parameters.items()},
            "tables": {name: self._capture_table(held) for name, held in parameters.items() if id(held) in self.tables},
            "shared": {key: value for key, value in self.optimizer.state.items() if not isinstance(key, Tensor)},
            "inner": {path: inner.capture() for path, inner in self.inner().items()},
            "own": own,
        }

    def inner(self) -> dict[str, NamedOptimizer]:
        """The optimizers that it holds, without those whose state is its own or wholly in its state dict.

        What they keep of a table is stored as state: the rows travel with the slots of the table's own optimizer.
        """
        found = {
            path: NamedOptimizer(optimizer=each, names=self.names, tables={})
            for path, each in inner_optimizers(self.optimizer).items()
            if each.state is not self.optimizer.state
        }
        if keeps_own_state(self.optimizer):  # one over copies of the parameters can be known to its holder alone
            return {path: each for path, each in found.items() if each.knows_all()}
        return found

    def knows_all(self) -> bool:
        """Whether all its parameters have names."""
        return all(id(held) in self.names for group in self.optimizer.param_groups for held in group["params"])

    def parameters(self) -> dict[str, HeldParameter]:
        """Its parameters by their names."""
        return {
            self._name(parameter): HeldParameter(parameter, number)
            for number, group in enumerate(self.optimizer.param_groups)
            for parameter in group["params"]
        }

    def problems(self, stored: Mapping[str, Any]) -> list[str]:
        """Why ``stored`` does not fit this optimizer; empty if it does."""
        if stored["kind"] != self.kind:
            return [f"{self.kind} was a {stored['kind']} in the checkpoint"]
        before, now = len(stored["groups"]), len(self.optimizer.param_groups)
        if before != now:
            return [f"{self.kind} has {now} parameter groups, but {before} in the checkpoint"]
        found = []
        if stored["inner"].keys() != self.inner().keys():
            found.append(f"{self.kind} wraps different optimizers than in the checkpoint")
        if stored["own"] is not None and not keeps_own_state(self.optimizer):
            found.append(f"{self.kind} no longer has its own state_dict(), as it had in the checkpoint")
        for index, (group, live) in enumerate(zip(stored["groups"], self.optimizer.param_groups, strict=True)):
            differing = set(group["parameters"]) ^ {self._name(held) for held in live["params"]}
            if differing:
                found.append(f"{self.kind}, group {index}, differs in its parameters {', '.join(sorted(differing))}")
        return found

    def fits(self, stored: Mapping[str, Any], name: str, parameter: nn.Parameter) -> bool:
        """Whether the state that ``stored`` holds for a parameter could be that of the one called so now.

        Of a table it holds no slots: where one became a dense parameter they would be missing.
        """
        if name not in stored["state"]:
            return False
        table = stored["tables"].get(name)
        if table is None:
            return True
        live = self.tables.get(id(parameter))
        return live is not None and live.is_like(table["shape"])

    def restore_options(self, number: int, options: Mapping[str, Any]) -> None:
        """Give a group the options that were stored for it."""
        live = self.optimizer.param_groups[number]
        for key, value in options.items():
            if key not in _IMPLEMENTATION:
                live[key] = place(value, live.get(key), torch.device("cpu"))

    def restore_shared(self, shared: Mapping[Any, Any]) -> None:
        """Bring back what belongs to no single parameter."""
        for key, value in shared.items():
            self.optimizer.state[key] = place(value, None, torch.device("cpu"))

    def restore_inner(self, stored: Mapping[str, Any], names: Set[str]) -> None:
        """Bring back what the optimizers inside keep for these parameters, and their options where groups match."""
        for path, inner in self.inner().items():
            saved = stored.get(path)
            if saved is None or saved["kind"] != inner.kind:
                continue
            if len(saved["groups"]) == len(inner.optimizer.param_groups):
                for number, group in enumerate(saved["groups"]):
                    inner.restore_options(number, group["options"])
            inner.restore_shared(saved["shared"])
            for name, held in inner.parameters().items():
                if name in names and name in saved["state"]:
                    inner.restore_state(held, saved["state"][name])
            inner.restore_inner(saved["inner"], names)

    def load_own(self, stored: Any) -> None:
        """Bring back what its state dict held besides, once all else is in its place; raises what it raises."""
        live = [{key: group[key] for key in group.keys() & _IMPLEMENTATION} for group in self.optimizer.param_groups]
        load_own(self.optimizer, stored, self._find)
        for group, implementation in zip(self.optimizer.param_groups, live, strict=False):
            group.update(implementation)

    def restore_state(self, held: HeldParameter, stored: Mapping[Any, Any]) -> None:
        """Bring back a parameter's state; its slots, which travel with rows, stay as they are."""
        parameter, group = held.parameter, self.optimizer.param_groups[held.group]
        live = self.optimizer.state.get(parameter, {})
        on_host = _ON_HOST if not (group.get("capturable") or group.get("fused")) else frozenset()
        restored = {key: value for key, value in live.items() if self._is_slot(parameter, value)}
        for key, value in stored.items():
            device = torch.device("cpu") if key in on_host else parameter.device
            restored[key] = place(value, live.get(key), device, parameter)
        if restored:
            self.optimizer.state[parameter] = restored
        else:  # an optimizer takes an empty state for a parameter it has not seen
            self.optimizer.state.pop(parameter, None)

    def _places(self, path: tuple[str, ...] = ()) -> dict[int, tuple[Any, ...]]:
        """Where the tensors of its state are stored, and those of the optimizers inside."""
        found: dict[int, tuple[Any, ...]] = {
            id(value): (path, name, key)
            for name, held in self.parameters().items()
            for key, value in self.optimizer.state.get(held.parameter, {}).items()
            if isinstance(value, Tensor)
        }
        for inside, inner in self.inner().items():
            found |= inner._places((*path, inside))
        return found

    def _find(self, place: tuple[Any, ...]) -> Tensor:
        path, name, key = place
        if path:
            return self.inner()[path[0]]._find((path[1:], name, key))
        found = self.optimizer.state[self.parameters()[name].parameter][key]
        assert isinstance(found, Tensor)
        return found

    def _name(self, parameter: nn.Parameter) -> str:
        try:
            return self.names[id(parameter)]
        except KeyError:
            raise ConfigurationError(
                f"{self.kind} holds a parameter of shape {tuple(parameter.shape)} that belongs to no model passed: "
                "pass its module too, as model={'name': module, ...}"
            ) from None

    def _capture_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        options = {key: value for key, value in group.items() if key != "params"}
        return {"parameters": [self._name(parameter) for parameter in group["params"]], "options": options}

    def _capture_state(self, parameter: nn.Parameter) -> dict[Any, Any]:
        state = self.optimizer.state.get(parameter)
        if not state:
            return {}
        kept = {key: value for key, value in state.items() if not self._is_slot(parameter, value)}
        for key, value in kept.items():
            self._require_shared(parameter, key, value)
        return {key: _without_sparse(value) for key, value in kept.items()}

    def _require_shared(self, parameter: nn.Parameter, key: object, value: object) -> None:
        """A plain tensor beside a divided parameter may be another one on each rank, and only one would be saved."""
        if isinstance(value, Tensor) and value.dim() and is_divided(parameter) and not is_dtensor(value):
            raise UnsupportedState(
                f"{self.kind} keeps {key!r} of parameter {self._name(parameter)!r}, which is a DTensor, as a plain "
                f"tensor of shape {tuple(value.shape)}: what other ranks keep would not be saved. Make it a DTensor "
                "too, with torch.zeros_like(parameter)"
            )

    def _capture_table(self, parameter: nn.Parameter) -> dict[str, Any]:
        table = self.tables[id(parameter)]
        return {"shape": list(table.whole_shape), "slots": sorted(table.slots())}

    def _is_slot(self, parameter: nn.Parameter, value: object) -> bool:
        table = self.tables.get(id(parameter))
        return table is not None and table.is_slot(value)


def place(value: Any, live: Any, device: torch.device, parameter: Tensor | None = None) -> Any:
    """``value`` in the storage of ``live`` where that fits, else in storage of its own; types stay as stored."""
    if is_source(value):
        return place_tensor(value, live, device, parameter)
    if type(value) is dict:
        if set(value) == {_SPARSE}:
            return _sparse(value[_SPARSE], device)
        return {key: place(item, None, device) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(place(item, None, device) for item in value)
    return value


def _without_sparse(value: Any) -> Any:
    # SGD's momentum over sparse gradients is itself sparse: stored by its parts, uncoalesced as it is.
    if not (isinstance(value, Tensor) and value.layout is torch.sparse_coo):
        return value
    parts = (value._indices(), value._values(), value.shape, value.is_coalesced())
    return {_SPARSE: parts}


def _sparse(parts: tuple[Tensor, Tensor, torch.Size, bool], device: torch.device) -> Tensor:
    indices, values, shape, coalesced = parts
    indices, values = indices.to(device, copy=True), values.to(device, copy=True)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=True)
