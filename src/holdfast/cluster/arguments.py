"""Arguments of a ``Cluster``, checked once, in the values that its parts take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holdfast.checkpoint.trainer.policies import Policies, require
from holdfast.cluster.job import Pacing
from holdfast.cluster.train.finite import OnNan
from holdfast.cluster.train.settings import LoopSettings
from holdfast.policy import SaveContext
from holdfast.policy.arguments import require_count, require_whole
from holdfast.policy.optimizer import Optimizer

_PUSHES = 4  # of a worker that a server may have to apply
PROTECTED_PUSHES = 8  # the same with parity: hosts are told of several at once, and a worker hears of it later


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many processes a job has."""

    servers: int
    workers: int
    spares: int

    def require(self, owner: object) -> None:
        """Refuse numbers that cannot be, as arguments of ``owner``."""
        for name in ("servers", "workers"):
            require_count(owner, name, getattr(self, name))
        require_whole(owner, "spares", self.spares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizers:
    """Of tables, and of everything else."""

    tables: Optimizer
    dense: Optimizer

    @classmethod
    def of(cls, optimizer: Optimizer, dense_optimizer: Optimizer | None) -> Optimizers:
        """The same for both where only one is given."""
        require("optimizer", optimizer, Optimizer)
        require("dense_optimizer", dense_optimizer or optimizer, Optimizer)
        return cls(tables=optimizer, dense=dense_optimizer or optimizer)


def pacing(
    policies: Policies,
    *,
    synchronous: bool,
    ahead: int,
    silence_s: float,
    on_nan: OnNan,
    on_bad_ids: Literal["raise", "skip"],
) -> Pacing:
    """How processes keep in touch, and how far workers run ahead."""
    LoopSettings(lr_tables=0.0, lr_dense=0.0, ahead=ahead, on_nan=on_nan, on_bad_ids=on_bad_ids)  # refused here
    return Pacing(
        synchronous=synchronous,
        ahead=0 if synchronous else ahead,
        save_steps=_save_steps(policies),
        pulls=ahead + 2,
        pushes=_PUSHES,
        beat_s=silence_s / 10,
        silence_s=silence_s,
        on_nan=on_nan,
        on_bad_ids=on_bad_ids,
    )


def protected(pacing: Pacing, *, is_rebuilt_fast: bool) -> Pacing:
    """The same, where servers protect each other's rows by parity."""
    return replace(pacing, pushes=PROTECTED_PUSHES, is_rebuilt_fast=is_rebuilt_fast)


def _save_steps(policies: Policies) -> int | None:
    """Between two saves; None where time alone decides."""
    due = [policies.save]
    if policies.priority is not None:
        due.append(policies.save.scaled(policies.priority.r))
    start = SaveContext(step=0, now_s=0.0, last_save_step=0, last_save_s=0.0)
    steps = [each.steps_until_due(start) for each in due]
    return min((each for each in steps if each is not None), default=None)
