"""Optimizers of embedding servers, declared: plain values that a server turns into updates of its rows.

A server updates the rows that have a gradient and no others: of a table of millions of rows a push brings thousands.
So none of these offers weight decay, by which rows without a gradient would have to shrink as well. Nor does any
decay its learning rate by a count of steps: servers to which workers push at their own pace have no common count. The
learning rate comes with each push, so that a schedule is a function of the worker's step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.base import Policy, registered
from holdfast.types import SlotSpec, UpdateMethod, UpdateRule

LARGEST_BETA = 0.999999  # its power is below half a unit of float32 where the row's count of updates ends, at 2^24
_NOT_NEGATIVE = "a finite number of at least 0"


class Optimizer(Policy, ABC):
    """How servers update rows."""

    __slots__ = ()

    lr: float

    def __post_init__(self) -> None:
        _require_not_negative(self, "lr", self.lr)

    @abstractmethod
    def rule(self, *, dense: bool = False) -> UpdateRule:
        """What servers compute.

        Args:
            dense: For dense parameters, all of which have a gradient in every step, instead of tables.
        """


@registered("sgd")
@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """``torch.optim.SGD``, with a momentum that is lazy: only rows that have a gradient move.

    In torch a row without a gradient keeps moving by its momentum, which fades from step to step. Here it rests, and
    its momentum is unchanged at its next gradient. Where every row has a gradient in every step, as in dense
    parameters, there is no difference. Dampening is not offered: torch does not apply it in a parameter's first step,
    and a row does not know which one that is.

    Args:
        lr: The learning rate, at least 0.
        momentum: How much of the running sum of gradients is kept, from 0 (no sum is stored) to below 1.
        nesterov: Look one step ahead; takes a momentum.
    """

    lr: float
    _: KW_ONLY
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        fits = is_finite_number(self.momentum) and 0 <= self.momentum < 1
        require(fits, self, "momentum", "at least 0 and below 1", self.momentum)
        require(isinstance(self.nesterov, bool), self, "nesterov", "True or False", self.nesterov)
        require(not self.nesterov or self.momentum > 0, self, "momentum", "above 0 with nesterov=True", self.momentum)

    def rule(self, *, dense: bool = False) -> UpdateRule:
        if self.momentum == 0:
            return UpdateRule(method=UpdateMethod.SGD)
        method = UpdateMethod.NESTEROV if self.nesterov else UpdateMethod.MOMENTUM
        return UpdateRule(method=method, slots=(SlotSpec(name="momentum_buffer"),), momentum=self.momentum)


class _Accumulating(Optimizer):
    """Divides by the root of a sum of squares that only grows."""

    __slots__ = ()

    eps: float
    initial_accumulator_value: float

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require_not_negative(self, "eps", self.eps)
        _require_not_negative(self, "initial_accumulator_value", self.initial_accumulator_value)


@registered("adagrad")
@dataclass(frozen=True, slots=True)
class Adagrad(_Accumulating):
    """``torch.optim.Adagrad`` on sparse gradients, without ``lr_decay``.

    Args:
        lr: The learning rate, at least 0.
        eps: Added to the root of the sum, at least 0; with 0, a value whose gradient has always been 0 becomes NaN.
        initial_accumulator_value: Where the sum of each value begins, at least 0.
    """

    lr: float
    _: KW_ONLY
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def rule(self, *, dense: bool = False) -> UpdateRule:
        slot = SlotSpec(name="sum", initial=self.initial_accumulator_value)
        return UpdateRule(method=UpdateMethod.ADAGRAD, slots=(slot,), eps=self.eps)


@registered("rowwise_adagrad")
@dataclass(frozen=True, slots=True)
class RowwiseAdagrad(_Accumulating):
    """Adagrad with one sum per row, of its mean squared gradients: FBGEMM's ``EXACT_ROWWISE_ADAGRAD``.

    Its state is one number per row instead of one per value.

    Args:
        lr: The learning rate, at least 0.
        eps: Added to the root of the sum, at least 0; with 0, a row whose gradients have always been 0 becomes NaN.
        initial_accumulator_value: Where the sum of each row begins, at least 0.
    """

    lr: float
    _: KW_ONLY
    eps: float = 1e-8
    initial_accumulator_value: float = 0.0

    def rule(self, *, dense: bool = False) -> UpdateRule:
        slot = SlotSpec(name="sum", single=True, initial=self.initial_accumulator_value)
        return UpdateRule(method=UpdateMethod.ROWWISE_ADAGRAD, slots=(slot,), eps=self.eps)


@registered("adam")
@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Of tables ``torch.optim.SparseAdam``, of dense parameters ``torch.optim.Adam``; the step is the row's own.

    torch corrects the bias of every row by the number of steps of the whole parameter, so that a row whose first
    gradient comes late is hardly corrected. Here each row counts its own updates, up to 2^24, by when no correction is
    left. A row with a gradient in every step is updated as in torch.

    Args:
        lr: The learning rate, at least 0.
        betas: How much is kept of the running means of gradients and of their squares: from 0 to 0.999999 each.
        eps: Added to the denominator, at least 0: as in torch, before the bias correction in tables, after it in dense
            parameters.
    """

    lr: float
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        _require_not_negative(self, "eps", self.eps)
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        fits = pair and all(is_finite_number(beta) and 0 <= beta <= LARGEST_BETA for beta in self.betas)
        require(fits, self, "betas", f"a tuple of two numbers from 0 to {LARGEST_BETA}", self.betas)

    def rule(self, *, dense: bool = False) -> UpdateRule:
        slots = (SlotSpec(name="exp_avg"), SlotSpec(name="exp_avg_sq"), SlotSpec(name="step", single=True))
        method = UpdateMethod.ADAM if dense else UpdateMethod.SPARSE_ADAM
        return UpdateRule(method=method, slots=slots, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps)


def _require_not_negative(owner: object, name: str, value: object) -> None:
    require(is_finite_number(value) and value >= 0, owner, name, _NOT_NEGATIVE, value)  # type: ignore[operator]
