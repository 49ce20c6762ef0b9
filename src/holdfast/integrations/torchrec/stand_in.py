"""Optimizers that stand for those inside of operators: what a checkpoint stores of them, as in an unsharded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.errors import RunError


class StandIn(Optimizer):
    """Holds the groups and the state of an optimizer, and takes no steps. Its subclasses have the optimizer's name."""

    def step(self, closure: Any = None) -> Any:
        """There is nothing to step: the operators did, in the backward pass."""
        raise RunError(f"{type(self).__name__} stands for an optimizer that is fused into the backward pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The operators of this rank that a group stands for: those whose options it has."""

    members: list[tuple[Any, Any]] = field(default_factory=list)  # an operator, and TorchRec's optimizer around it

    def learning_rate(self) -> float | None:
        """Theirs; None where there are none."""
        return self.members[0][0].get_learning_rate() if self.members else None

    def learn_at(self, rate: float) -> None:
        """Set it, also where TorchRec would take it from at its next step."""
        for operator, around in self.members:
            operator.set_learning_rate(rate)
            for group in around.param_groups:
                group["lr"] = rate


Options = tuple[tuple[str, float], ...]


class StandIns:
    """One stand-in for each kind of optimizer, with a group for each set of options."""

    def __init__(self) -> None:
        self._parameters: dict[str, dict[Options, list[nn.Parameter]]] = {}
        self._operators: dict[tuple[str, Options], Operators] = {}
        self.optimizers: tuple[StandIn, ...] = ()

    def add(self, kind: str, options: Mapping[str, float], parameter: nn.Parameter) -> None:
        """A table's parameter."""
        groups = self._parameters.setdefault(kind, {})
        groups.setdefault(_key(options), []).append(parameter)

    def add_operator(self, kind: str, options: Mapping[str, float], operator: Any, around: Any) -> None:
        """An operator of this rank that has these options now."""
        operators = self._operators.setdefault((kind, _key(options)), Operators())
        if all(operator is not each for each, _ in operators.members):
            operators.members.append((operator, around))

    def build(self) -> None:
        """All parameters are added."""
        self.optimizers = tuple(_stand_in(kind, groups) for kind, groups in self._parameters.items())

    def read_options(self) -> None:
        """Learning rates change while training; of operators on other ranks none is known, and none is stored."""
        for group, operators in self._groups():
            rate = operators.learning_rate()
            if rate is None:
                group.pop("lr", None)
            else:
                group["lr"] = rate

    def write_options(self) -> None:
        """Give the operators the learning rates of their groups."""
        for group, operators in self._groups():
            if "lr" in group:
                operators.learn_at(float(group["lr"]))

    def _groups(self) -> Sequence[tuple[dict[str, Any], Operators]]:
        return [
            (group, self._operators.get((type(optimizer).__name__, options), Operators()))
            for optimizer in self.optimizers
            for group, options in zip(optimizer.param_groups, self._parameters[type(optimizer).__name__], strict=True)
        ]


def _key(options: Mapping[str, float]) -> Options:
    return tuple(sorted(options.items()))


def _stand_in(kind: str, groups: Mapping[Options, list[nn.Parameter]]) -> StandIn:
    made: type[StandIn] = type(kind, (StandIn,), {})
    optimizer = made([{"params": held, **dict(options)} for options, held in groups.items()], {})
    if kind != "SGD":  # which keeps nothing; what the others count does not matter without a decay of the rate
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] = {"step": torch.tensor(0.0)}
    return optimizer
