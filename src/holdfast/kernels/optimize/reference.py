"""Row updates in NumPy: what the faster ones must equal, bit for bit, and what runs where Numba is missing.

Everything is computed in float32, one IEEE 754 operation after the other in the order written here, except for the
corrections and step sizes of Adam, which are float64 until they meet a row. A NaN is stored as one and the same NaN,
whatever it came from, because which one an operation returns depends on the order that a compiler gives its operands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.types import UpdateMethod

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Words = NDArray[np.uint32]

LANES = 16  # partial sums of a row's squares: value ``i`` goes to sum ``i % LANES``
NOT_A_NUMBER = np.float32(np.nan)
LAST_STEP = np.float32(2**24)  # float32 counts no further by ones

ASCENDING, UNORDERED = -1, -2  # answers of ``find_outside`` where all ids are inside
_ZERO, _ONE = np.float32(0), np.float32(1)


class Groups(NamedTuple):
    """Positions of a push by row: those of ``rows[i]`` are ``order[starts[i]:starts[i + 1]]``, in order of the push.

    Without ``starts`` and ``order`` position ``i`` alone belongs to ``rows[i]``.
    """

    rows: Ids
    starts: Ids
    order: Ids


class Numbers(NamedTuple):
    """The scalars of an update."""

    lr: float
    momentum: float
    beta1: float
    beta2: float
    eps: float


class Slots(NamedTuple):
    """The slots of a method in its order, ``[rows, width]``; empty ones after the last."""

    first: Floats
    second: Floats
    third: Floats


class Places(NamedTuple):
    """Where differences go, old XOR new of one record for each group. None of these: nobody wants to know them."""

    at: Ids  # rows of ``records``
    kept: Words  # of what is there, the bits that a difference is added to: all or none
    records: Words


def find_outside(ids: Ids, rows: int) -> int:
    """The position of the first id outside ``[0, rows)``; else whether the ids ascend, each once."""
    outside = np.flatnonzero((ids < 0) | (ids >= rows))
    if outside.size:
        return int(outside[0])
    return ASCENDING if bool((ids[1:] > ids[:-1]).all()) else UNORDERED


def group(ids: Ids, rows: int) -> Groups:
    """Group the positions of ids, all of them in ``[0, rows)``."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ids)])
    return Groups(rows=ordered[first], starts=np.append(first, len(ids)), order=order)


def sum_groups(groups: Groups, gradients: Floats) -> Floats:
    """The sum of each group: its first gradient, plus its second, plus its third, and so on."""
    counts = np.diff(groups.starts)
    sums = gradients[groups.order[groups.starts[:-1]]]
    with np.errstate(all="ignore"):
        for number in range(1, int(counts.max(initial=0))):
            longer = np.flatnonzero(counts > number)
            sums[longer] += gradients[groups.order[groups.starts[longer] + number]]
    return _one_nan(sums)


def update(
    method: UpdateMethod,
    numbers: Numbers,
    groups: Groups,
    part: slice,
    gradients: Floats,
    weights: Floats,
    slots: Slots,
    places: Places,
) -> None:
    """Apply the groups ``part`` to their rows, and add each row's difference to what is at its place."""
    rows = groups.rows[part]
    before = _records(rows, weights, slots) if places.at.size else None
    with np.errstate(all="ignore"):
        g = _gradients(groups, part, gradients)
        state = [slot[rows] for slot in slots if slot.shape[1]]
        weights[rows] = _one_nan(_FORMULAS[method](g, weights[rows], state, numbers))
        for slot, values in zip(slots, state, strict=False):
            slot[rows] = _one_nan(values)
    if before is not None:
        at, kept = places.at[part], places.kept[part, None]
        places.records[at] = (places.records[at] & kept) ^ before ^ _records(rows, weights, slots)


def _records(rows: Ids, weights: Floats, slots: Slots) -> Words:
    columns = [column[rows] for column in (weights, *slots) if column.shape[1]]
    return np.concatenate(columns, axis=1).view(np.uint32)


def _gradients(groups: Groups, part: slice, gradients: Floats) -> Floats:
    if not groups.starts.size:
        return gradients[part]
    starts = groups.starts[part.start : part.stop + 1]
    return sum_groups(Groups(rows=groups.rows[part], starts=starts, order=groups.order), gradients)


def _sgd(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    return w - np.float32(numbers.lr) * g


def _momentum(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    state[0] = np.float32(numbers.momentum) * state[0] + g
    return w - np.float32(numbers.lr) * state[0]


def _nesterov(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    state[0] = np.float32(numbers.momentum) * state[0] + g
    ahead: Floats = g + np.float32(numbers.momentum) * state[0]
    return w - np.float32(numbers.lr) * ahead


def _adagrad(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    state[0] = state[0] + g * g
    direction: Floats = g / (_root(state[0]) + np.float32(numbers.eps))
    return w - np.float32(numbers.lr) * direction


def _rowwise_adagrad(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    state[0] = state[0] + (_sum_squares(g) / np.float32(g.shape[1]))[:, None]
    size: Floats = np.float32(numbers.lr) / (_root(state[0]) + np.float32(numbers.eps))
    return w - size * g


def _sum_squares(g: Floats) -> Floats:
    """In ``LANES`` partial sums, whose halves are then added to each other until one is left."""
    padded = np.zeros((len(g), max(1, -(-g.shape[1] // LANES)) * LANES), np.float32)
    padded[:, : g.shape[1]] = g * g
    sums = padded[:, :LANES]
    for start in range(LANES, padded.shape[1], LANES):
        sums = sums + padded[:, start : start + LANES]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def _sparse_adam(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    mean, square, step = state
    state[0] = mean + np.float32(1 - numbers.beta1) * (g - mean)
    state[1] = square + np.float32(1 - numbers.beta2) * (g * g - square)
    state[2] = _next(step)
    first, second = _corrections(state[2], numbers)
    size = (numbers.lr * np.sqrt(second) / first).astype(np.float32)
    return w - size * (state[0] / (_root(state[1]) + np.float32(numbers.eps)))


def _adam(g: Floats, w: Floats, state: list[Floats], numbers: Numbers) -> Floats:
    mean, square, step = state
    share, kept = np.float32(1 - numbers.beta1), np.float32(numbers.beta1)
    state[0] = mean + share * (g - mean) if numbers.beta1 > 0.5 else g - kept * (g - mean)
    state[1] = np.float32(numbers.beta2) * square + (np.float32(1 - numbers.beta2) * g) * g
    state[2] = _next(step)
    first, second = _corrections(state[2], numbers)
    size, root = (numbers.lr / first).astype(np.float32), np.sqrt(second).astype(np.float32)
    return w - (size * state[0]) / (_root(state[1]) / root + np.float32(numbers.eps))


def _root(values: Floats) -> Floats:
    return np.sqrt(values)


def _next(step: Floats) -> Floats:
    return np.minimum(np.where(step > 0, step, _ZERO) + _ONE, LAST_STEP)


def _corrections(step: Floats, numbers: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return 1.0 - _power(numbers.beta1, step), 1.0 - _power(numbers.beta2, step)


def _power(base: float, exponent: Floats) -> NDArray[np.float64]:
    """By squaring, because libraries differ in the last bit of a power."""
    left = exponent.astype(np.int64)
    result = np.ones(left.shape, np.float64)
    while left.any():
        result = np.where(left & 1, result * base, result)
        base, left = base * base, left >> 1
    return result


def _one_nan(values: Floats) -> Floats:
    values[np.isnan(values)] = NOT_A_NUMBER
    return values


_FORMULAS = {
    UpdateMethod.SGD: _sgd,
    UpdateMethod.MOMENTUM: _momentum,
    UpdateMethod.NESTEROV: _nesterov,
    UpdateMethod.ADAGRAD: _adagrad,
    UpdateMethod.ROWWISE_ADAGRAD: _rowwise_adagrad,
    UpdateMethod.SPARSE_ADAM: _sparse_adam,
    UpdateMethod.ADAM: _adam,
}
