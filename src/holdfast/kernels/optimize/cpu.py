"""Row updates in Numba: without the GIL, one thread for each part of a push. Importing this module compiles them.

Every operation is the reference's, in its order: nothing is fused or reordered. Each kernel runs over many rows:
passing arrays on counts references, which for each row would take longer than the row.

The gradient of ``rows[number]`` is ``g[number - shift]``. What an update changes is known in the same pass that changes
it: old XOR new of the record goes to ``changes[places[number]]``, in which the slots stand behind the weights. It is
added to the bits of ``kept[number]`` of what lies there: all of it where the row has changed before, otherwise none.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import LINE_BYTES, prefetch_line
from holdfast.kernels.optimize.grouping import find_outside, group
from holdfast.kernels.optimize.reference import (
    LANES,
    LAST_STEP,
    NOT_A_NUMBER,
    Floats,
    Groups,
    Ids,
    Numbers,
    Places,
    Slots,
    Words,
)
from holdfast.types import UpdateMethod

__all__ = ["find_outside", "group", "sum_groups", "update"]

Doubles = NDArray[np.float64]

_METHODS = {method: number for number, method in enumerate(UpdateMethod)}
_SGD, _MOMENTUM, _NESTEROV, _ADAGRAD, _ROWWISE_ADAGRAD, _SPARSE_ADAM = range(6)  # and after them Adam
_LR, _MOMENTUM_SHARE, _BETA1, _BETA2, _EPS = range(5)  # of Numbers
_BLOCK = 256  # rows whose gradients are gone through before the rows are: they stay in the cache
_AHEAD = 8  # rows between a row's prefetch and its use
_ZERO, _ONE = np.float32(0), np.float32(1)
_NOTHING = np.uint32(0)  # is kept of what lies where a difference goes

_INT, _FLOAT, _DOUBLE, _WORD = types.int64, types.float32, types.float64, types.uint32
_IDS = types.Array(types.int64, 1, "C", readonly=True)  # or writable
_GRADIENTS = types.Array(types.float32, 2, "C", readonly=True)  # or writable
_SHARD, _NUMBERS = types.Array(types.float32, 2, "C"), types.Array(types.float64, 1, "C")
_VECTOR, _WORDS = types.Array(types.float32, 1, "C"), types.Array(types.uint32, 2, "C")
_MASKS = types.Array(types.uint32, 1, "C")
_ROWS = (_IDS, _INT, _INT, _GRADIENTS, _INT, _NUMBERS, _SHARD)  # rows, begin, end, g, shift, numbers, w


@compiled([_FLOAT(_FLOAT)], error_model="numpy")
def _stored(value: np.float32) -> np.float32:
    return value if value == value else NOT_A_NUMBER


@compiled([_WORD(_FLOAT, _FLOAT)])
def _changed(old: np.float32, new: np.float32) -> np.uint32:
    """Old XOR new."""
    return np.float32(old).view(np.uint32) ^ np.float32(new).view(np.uint32)


@compiled([types.void(_INT, _INT)])
def _fetch(address: int, width: int) -> None:
    """Ask for a row before it is needed."""
    for offset in range(0, width, LINE_BYTES):
        prefetch_line(address + offset)


@compiled([types.void(_IDS, _INT, _MASKS, _WORDS)])
def _fetch_place(places: Ids, number: int, kept: Words, changes: Words) -> None:
    """Ask for what is known of a row's changes before they are added to."""
    if kept[number]:
        _fetch(changes.ctypes.data + places[number] * changes.shape[1] * 4, changes.shape[1] * 4)


@compiled([types.void(*_ROWS, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _sgd(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    lr, noted = np.float32(numbers[_LR]), places.shape[0] > 0
    address, width = w.ctypes.data, w.shape[1] * 4
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)  # here and below: no index counts from the end
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        _fetch(address + rows[min(number + _AHEAD, end - 1)] * width, width)
        for i in range(w.shape[1]):
            old = w[row, i]
            w[row, i] = new = _stored(old - lr * g[at, i])
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)


@compiled([types.void(*_ROWS, _SHARD, _INT, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _momentum(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    sums: Floats, nesterov: int, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    lr, share, noted = np.float32(numbers[_LR]), np.float32(numbers[_MOMENTUM_SHARE]), places.shape[0] > 0
    address, sums_address, width = w.ctypes.data, sums.ctypes.data, w.shape[1] * 4
    second = np.uint64(w.shape[1])
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        ahead = rows[min(number + _AHEAD, end - 1)] * width
        _fetch(address + ahead, width)
        _fetch(sums_address + ahead, width)
        for i in range(w.shape[1]):
            old, old_sum = w[row, i], sums[row, i]
            moved = share * old_sum + g[at, i]
            by = g[at, i] + share * moved if nesterov else moved
            sums[row, i] = new_sum = _stored(moved)
            w[row, i] = new = _stored(old - lr * by)
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)
            beyond = second + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_sum, new_sum)


@compiled([types.void(*_ROWS, _SHARD, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _adagrad(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    sums: Floats, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    lr, eps, noted = np.float32(numbers[_LR]), np.float32(numbers[_EPS]), places.shape[0] > 0
    address, sums_address, width = w.ctypes.data, sums.ctypes.data, w.shape[1] * 4
    second = np.uint64(w.shape[1])
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        ahead = rows[min(number + _AHEAD, end - 1)] * width
        _fetch(address + ahead, width)
        _fetch(sums_address + ahead, width)
        for i in range(w.shape[1]):
            old, old_sum = w[row, i], sums[row, i]
            total = old_sum + g[at, i] * g[at, i]
            sums[row, i] = new_sum = _stored(total)
            w[row, i] = new = _stored(old - lr * (g[at, i] / (np.sqrt(total) + eps)))
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)
            beyond = second + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_sum, new_sum)


@compiled(
    [types.void(_IDS, _INT, _INT, _GRADIENTS, _INT, _NUMBERS, _SHARD, _VECTOR, _VECTOR, _IDS, _MASKS, _WORDS)],
    error_model="numpy",
)
def _add_to_sums(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, sums: Floats, sizes: Floats,
    lanes: Floats, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    """Add each row's mean square to its sum; the sizes of the rows' steps."""
    lr, eps, whole = np.float32(numbers[_LR]), np.float32(numbers[_EPS]), g.shape[1] // LANES * LANES
    noted, last = places.shape[0] > 0, np.uint64(g.shape[1])
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        prefetch_line(sums.ctypes.data + rows[min(number + _AHEAD, end - 1)] * 4)
        for lane in range(LANES):
            lanes[lane] = _ZERO
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                lanes[lane] += g[at, start + lane] * g[at, start + lane]
        for i in range(whole, g.shape[1]):
            lanes[i - whole] += g[at, i] * g[at, i]
        for half in (8, 4, 2, 1):
            for lane in range(half):
                lanes[lane] += lanes[half + lane]
        old = sums[row, 0]
        total = old + lanes[0] / np.float32(g.shape[1])
        sizes[number - begin] = lr / (np.sqrt(total) + eps)
        sums[row, 0] = new = _stored(total)
        changes[place, last] = (changes[place, last] & mask) ^ _changed(old, new)


@compiled([types.void(*_ROWS, _SHARD, _VECTOR, _VECTOR, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _rowwise_adagrad(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    sums: Floats, sizes: Floats, lanes: Floats, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    """In two passes: in one, each row would wait for its sum to come from memory before the next one is asked for."""
    _add_to_sums(rows, begin, end, g, shift, numbers, sums, sizes, lanes, places, kept, changes)
    noted, address, width = places.shape[0] > 0, w.ctypes.data, w.shape[1] * 4
    for number in range(begin, end):
        row, at, size = max(rows[number], 0), max(number - shift, 0), sizes[number - begin]
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        _fetch(address + rows[min(number + _AHEAD, end - 1)] * width, width)
        for i in range(w.shape[1]):
            old = w[row, i]
            w[row, i] = new = _stored(old - size * g[at, i])
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)


@compiled([_DOUBLE(_DOUBLE, _INT)], error_model="numpy")
def _power(base: float, exponent: int) -> float:
    """By squaring, because libraries differ in the last bit of a power."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result


@compiled([_FLOAT(_FLOAT)], error_model="numpy")
def _next(step: np.float32) -> np.float32:
    return min((step if step > _ZERO else _ZERO) + _ONE, LAST_STEP)


@compiled([types.void(*_ROWS, _SHARD, _SHARD, _SHARD, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _sparse_adam(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    means: Floats, squares: Floats, steps: Floats, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    lr, beta1, beta2, eps = numbers[_LR], numbers[_BETA1], numbers[_BETA2], np.float32(numbers[_EPS])
    first, second = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    noted, address, width = places.shape[0] > 0, w.ctypes.data, w.shape[1] * 4
    means_address, squares_address = means.ctypes.data, squares.ctypes.data
    dim, twice = np.uint64(w.shape[1]), np.uint64(2 * w.shape[1])
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        ahead = rows[min(number + _AHEAD, end - 1)] * width
        _fetch(address + ahead, width)
        _fetch(means_address + ahead, width)
        _fetch(squares_address + ahead, width)
        old_step = steps[row, 0]
        steps[row, 0] = new_step = _next(old_step)
        beyond = twice + dim
        changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_step, new_step)
        step = int(new_step)
        size = np.float32(lr * np.sqrt(1.0 - _power(beta2, step)) / (1.0 - _power(beta1, step)))
        for i in range(w.shape[1]):
            old, old_mean, old_square = w[row, i], means[row, i], squares[row, i]
            mean = old_mean + first * (g[at, i] - old_mean)
            square = old_square + second * (g[at, i] * g[at, i] - old_square)
            means[row, i] = new_mean = _stored(mean)
            squares[row, i] = new_square = _stored(square)
            w[row, i] = new = _stored(old - size * (mean / (np.sqrt(square) + eps)))
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)
            beyond = dim + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_mean, new_mean)
            beyond = twice + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_square, new_square)


@compiled([types.void(*_ROWS, _SHARD, _SHARD, _SHARD, _IDS, _MASKS, _WORDS)], error_model="numpy")
def _adam(
    rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    means: Floats, squares: Floats, steps: Floats, places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    lr, beta1, beta2, eps = numbers[_LR], numbers[_BETA1], numbers[_BETA2], np.float32(numbers[_EPS])
    first, second = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    kept1, kept2, near = np.float32(beta1), np.float32(beta2), beta1 > 0.5
    noted, address, width = places.shape[0] > 0, w.ctypes.data, w.shape[1] * 4
    means_address, squares_address = means.ctypes.data, squares.ctypes.data
    dim, twice = np.uint64(w.shape[1]), np.uint64(2 * w.shape[1])
    for number in range(begin, end):
        row, at = max(rows[number], 0), max(number - shift, 0)
        place, mask = (max(places[number], 0), kept[number]) if noted else (0, _NOTHING)
        if noted:
            _fetch_place(places, min(number + _AHEAD, end - 1), kept, changes)
        ahead = rows[min(number + _AHEAD, end - 1)] * width
        _fetch(address + ahead, width)
        _fetch(means_address + ahead, width)
        _fetch(squares_address + ahead, width)
        old_step = steps[row, 0]
        steps[row, 0] = new_step = _next(old_step)
        beyond = twice + dim
        changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_step, new_step)
        step = int(new_step)
        size = np.float32(lr / (1.0 - _power(beta1, step)))
        root = np.float32(np.sqrt(1.0 - _power(beta2, step)))
        for i in range(w.shape[1]):
            old, old_mean, old_square = w[row, i], means[row, i], squares[row, i]
            change = g[at, i] - old_mean
            mean = old_mean + first * change if near else g[at, i] - kept1 * change
            square = kept2 * old_square + (second * g[at, i]) * g[at, i]
            means[row, i] = new_mean = _stored(mean)
            squares[row, i] = new_square = _stored(square)
            w[row, i] = new = _stored(old - (size * mean) / (np.sqrt(square) / root + eps))
            changes[place, i] = (changes[place, i] & mask) ^ _changed(old, new)
            beyond = dim + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_mean, new_mean)
            beyond = twice + np.uint64(i)
            changes[place, beyond] = (changes[place, beyond] & mask) ^ _changed(old_square, new_square)


@compiled(
    [types.void(_INT, *_ROWS, _SHARD, _SHARD, _SHARD, _VECTOR, _VECTOR, _IDS, _MASKS, _WORDS)], error_model="numpy"
)
def _update_rows(
    method: int, rows: Ids, begin: int, end: int, g: Floats, shift: int, numbers: Doubles, w: Floats,
    first: Floats, second: Floats, third: Floats, sizes: Floats, lanes: Floats,
    places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    if method == _SGD:
        _sgd(rows, begin, end, g, shift, numbers, w, places, kept, changes)
    elif method <= _NESTEROV:
        _momentum(rows, begin, end, g, shift, numbers, w, first, method - _MOMENTUM, places, kept, changes)
    elif method == _ADAGRAD:
        _adagrad(rows, begin, end, g, shift, numbers, w, first, places, kept, changes)
    elif method == _ROWWISE_ADAGRAD:
        _rowwise_adagrad(rows, begin, end, g, shift, numbers, w, first, sizes, lanes, places, kept, changes)
    elif method == _SPARSE_ADAM:
        _sparse_adam(rows, begin, end, g, shift, numbers, w, first, second, third, places, kept, changes)
    else:
        _adam(rows, begin, end, g, shift, numbers, w, first, second, third, places, kept, changes)


@compiled([types.void(_IDS, _IDS, _INT, _INT, _GRADIENTS, _SHARD)])
def _sum(starts: Ids, order: Ids, begin: int, end: int, gradients: Floats, sums: Floats) -> None:
    """The sums of some groups, in the order of their positions."""
    for number in range(begin, end):
        at, first = max(number - begin, 0), max(order[starts[number]], 0)
        for i in range(sums.shape[1]):
            sums[at, i] = gradients[first, i]
        for place in range(starts[number] + 1, starts[number + 1]):
            position = max(order[place], 0)
            for i in range(sums.shape[1]):
                sums[at, i] += gradients[position, i]


@compiled([
    types.void(
        _INT, _NUMBERS, _IDS, _IDS, _IDS, _INT, _INT, _GRADIENTS, _SHARD, _SHARD, _SHARD, _SHARD, _IDS, _MASKS, _WORDS
    )
])  # fmt: skip
def _update(
    method: int, numbers: Doubles, rows: Ids, starts: Ids, order: Ids, begin: int, end: int,
    gradients: Floats, w: Floats, first: Floats, second: Floats, third: Floats,
    places: Ids, kept: Words, changes: Words,
) -> None:  # fmt: skip
    grouped, size = starts.shape[0] > 0, min(_BLOCK, end - begin)
    sums = np.empty((size if grouped else 0, w.shape[1]), np.float32)
    sizes, lanes = np.empty(size, np.float32), np.empty(LANES, np.float32)
    if not places.shape[0]:  # nobody wants to know: one record in the cache takes what would be a branch elsewhere
        changes = np.empty((1, w.shape[1] + first.shape[1] + second.shape[1] + third.shape[1]), np.uint32)
    for block in range(begin, end, _BLOCK):
        stop = min(block + _BLOCK, end)
        g, shift = gradients, 0
        if grouped:
            _sum(starts, order, block, stop, gradients, sums)
            g, shift = sums, block
        _update_rows(
            method, rows, block, stop, g, shift, numbers, w, first, second, third, sizes, lanes, places, kept, changes
        )


def sum_groups(groups: Groups, gradients: Floats) -> Floats:
    """The sum of each group: its first gradient, plus its second, plus its third, and so on."""
    sums = np.empty((len(groups.rows), gradients.shape[1]), np.float32)
    _sum(groups.starts, groups.order, 0, len(sums), gradients, sums)
    sums[np.isnan(sums)] = NOT_A_NUMBER
    return sums


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
    """Apply the groups ``part`` to their rows, and add old XOR new of each row's record to what is at its place."""
    settings = _METHODS[method], np.array(numbers)
    at, kept, changes = places
    _update(*settings, *groups, part.start, part.stop, gradients, weights, *slots, at, kept, changes)
