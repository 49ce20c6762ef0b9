"""Shards, pushes and optimizers for the tests of updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from holdfast.kernels import optimize
from holdfast.kernels.records import words_of
from holdfast.policy import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from holdfast.types import UpdateRule

NOT_FINITE = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
UNUSUAL = np.append(NOT_FINITE, np.array([1e30, -1e30, 1e-30], np.float32))

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(0.05, initial_accumulator_value=0.1),
    "rowwise_adagrad": RowwiseAdagrad(0.05),
    "adam": Adam(0.01),
    "adam_of_small_betas": Adam(0.01, betas=(0.3, 0.0)),
}
RULES = {(name, dense): each.rule(dense=dense) for name, each in OPTIMIZERS.items() for dense in (False, True)}


@dataclass(slots=True)
class Shard:
    """Some rows with the slots of a rule."""

    rule: UpdateRule
    weights: np.ndarray
    slots: dict[str, np.ndarray]

    @property
    def words(self) -> int:
        """Of a record."""
        return words_of(self.rule, self.weights.shape[1])

    def copy(self) -> Shard:
        return Shard(self.rule, self.weights.copy(), {name: slot.copy() for name, slot in self.slots.items()})

    def apply(self, ids: np.ndarray | None, gradients: np.ndarray, lr: float, threads: int = 1) -> None:
        optimize.apply(self.rule, ids, gradients, self.weights, self.slots, lr=lr, threads=threads)

    def bytes(self) -> dict[str, bytes]:
        return {"weights": self.weights.tobytes(), **{name: slot.tobytes() for name, slot in self.slots.items()}}


def trained_shard(rule: UpdateRule, rows: int, dim: int, seed: int, step: int | None = None) -> Shard:
    """As after some training: every row after ``step`` updates, or each after a number of its own."""
    draw = np.random.default_rng(seed)
    slots = optimize.new_slots(rule, rows, dim)
    for name, slot in slots.items():
        if name == "step":
            slot[:] = draw.integers(0, 1000, slot.shape) if step is None else step
        elif name in ("sum", "exp_avg_sq"):
            slot += draw.random(slot.shape, np.float32) * np.float32(step != 0)
        else:
            slot += draw.standard_normal(slot.shape, np.float32) * np.float32(step != 0)
    return Shard(rule, draw.standard_normal((rows, dim), np.float32), slots)


def gradients_of(count: int, dim: int, seed: int) -> np.ndarray:
    """Of many magnitudes."""
    draw = np.random.default_rng(seed)
    return (draw.standard_normal((count, dim)) * 10.0 ** draw.uniform(-12, 6, (count, dim))).astype(np.float32)


def exact_gradients_of(count: int, dim: int, seed: int) -> np.ndarray:
    """Whose sums are exact, whatever their order."""
    return np.random.default_rng(seed).integers(-512, 513, (count, dim)).astype(np.float32) / 64


def with_unusual(gradients: np.ndarray, seed: int, values: np.ndarray = UNUSUAL) -> np.ndarray:
    """Some values are none that training should meet."""
    draw = np.random.default_rng(seed)
    mask = draw.random(gradients.shape) < 0.1
    return np.where(mask, draw.choice(values, gradients.shape), gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sizes and a seed for the rest."""

    rows: int
    dim: int
    ids: np.ndarray
    seed: int
    unusual: bool

    def gradients(self) -> np.ndarray:
        found = gradients_of(len(self.ids), self.dim, self.seed + 1)
        return with_unusual(found, self.seed + 2) if self.unusual else found

    def gradients_to_add_in_any_order(self) -> np.ndarray:
        if len(np.unique(self.ids)) == len(self.ids):
            return self.gradients()
        found = exact_gradients_of(len(self.ids), self.dim, self.seed + 1)
        return with_unusual(found, self.seed + 2, NOT_FINITE) if self.unusual else found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, seed, duplicates = draw(st.integers(1, 40)), draw(st.integers(0, 2**32)), draw(st.booleans())
    count = draw(st.integers(0, 2 * rows if duplicates else rows))
    ids = np.random.default_rng(seed).choice(rows, count, replace=duplicates)
    ids = np.sort(ids) if draw(st.booleans()) else ids
    return Case(rows=rows, dim=draw(st.integers(1, 70)), ids=ids, seed=seed, unusual=draw(st.booleans()))
