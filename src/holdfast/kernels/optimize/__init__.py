"""Optimizers of embedding servers: gradients of some rows in, weights and slots of a shard changed in place.

A shard's weights are ``[rows, dim]``, its slots ``[rows, dim]`` or ``[rows]``, as the rule says: C-contiguous float32
arrays. Ids count from the shard's first row. Where an id stands in a push more than once, its gradients are summed
first, in float32 and in the order in which they stand, and the row is updated once. Rows do not depend on each other.
So the number of threads changes nothing, and Numba and NumPy give the same bytes. No torch: servers run without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError
from holdfast.kernels.optimize.reference import ASCENDING, Floats, Groups, Ids, Numbers, Places, Slots
from holdfast.kernels.parts import in_parts
from holdfast.kernels.plain import plain
from holdfast.types import UpdateMethod, UpdateRule

__all__ = ["Places", "RowUpdater", "Sums", "apply", "new_slots", "sum_duplicates", "warm_up"]

Integers: TypeAlias = NDArray[np.integer[Any]]

_PART = 2048  # rows that a thread takes at a time, at least: a tenth of a millisecond
_NO_IDS = np.empty(0, np.int64)
_NO_SLOT = np.empty((0, 0), np.float32)
_UNTOLD = Places(_NO_IDS, np.empty(0, np.uint32), np.empty((0, 0), np.uint32))

_SINGLE_SLOTS = {  # what a method keeps of a row: whether each of its slots is a single number
    UpdateMethod.SGD: (),
    UpdateMethod.MOMENTUM: (False,),
    UpdateMethod.NESTEROV: (False,),
    UpdateMethod.ADAGRAD: (False,),
    UpdateMethod.ROWWISE_ADAGRAD: (True,),
    UpdateMethod.SPARSE_ADAM: (False, False, True),
    UpdateMethod.ADAM: (False, False, True),
}


class Sums(NamedTuple):
    """Each id once, ascending, and the sum of its gradients."""

    ids: Ids
    gradients: Floats


def sum_duplicates(ids: Integers, gradients: Floats) -> Sums:
    """Add the gradients of ids that stand there more than once: the first, plus the second, plus the third, and so on.

    Args:
        ids: Rows, none negative, in any order.
        gradients: ``[ids, dim]``: one for each id.
    """
    known, gradients = _checked(ids, gradients, gradients.shape[-1])
    rows = int(known.max(initial=0)) + 1
    _require_inside(known, rows)
    groups = _kernels().group(known, rows)
    return Sums(ids=groups.rows, gradients=_kernels().sum_groups(groups, gradients))


def new_slots(rule: UpdateRule, rows: int, dim: int) -> dict[str, Floats]:
    """The slots of rows without an update.

    Args:
        rule: Whose.
        rows: How many rows.
        dim: How many values a row has.
    """
    return {slot.name: np.full((rows, *slot.column(dim).row_shape), slot.initial, np.float32) for slot in rule.slots}


def apply(
    rule: UpdateRule,
    ids: Integers | None,
    gradients: Floats,
    weights: Floats,
    slots: Mapping[str, Floats],
    *,
    lr: float,
    threads: int = 1,
) -> None:
    """One update of a shard; ``RowUpdater`` is the same for many."""
    RowUpdater(rule, weights, slots)(ids, gradients, lr=lr, threads=threads)


class RowUpdater:
    """Applies pushes to one shard, with all that stays the same checked once: it runs for every table in every push.

    Args:
        rule: How rows are updated.
        weights: ``[rows, dim]``.
        slots: The rule's, by name.
    """

    def __init__(self, rule: UpdateRule, weights: Floats, slots: Mapping[str, Floats]) -> None:
        if weights.ndim != 2 or not weights.shape[1]:
            raise ConfigurationError(f"weights must be [rows, dim] with a dim of at least 1, got {weights.shape}")
        _require_plain("weights", weights, weights.shape)
        self._rule = rule
        self._weights = weights
        self._slots = _in_order(rule, slots, weights.shape[0], weights.shape[1])
        self._words = weights.shape[1] + sum(slot.shape[1] for slot in self._slots)

    def __call__(self, ids: Integers | None, gradients: Floats, *, lr: float, threads: int = 1) -> None:
        """Update the rows that have a gradient. An id outside the shard changes nothing and raises ConfigurationError.

        Args:
            ids: Rows, in any order, repeated or not. None: all rows in their order, as of a dense parameter.
            gradients: ``[ids, dim]``: one for each id.
            lr: The learning rate of this push.
            threads: How many share the work.
        """
        if ids is None:
            _, gradients = _checked(self._every_row, gradients, self._weights.shape[1])
            groups = _each_alone(self._every_row)
        else:
            groups, gradients = self._grouped(ids, gradients)
        self._update(groups, gradients, lr, threads, _UNTOLD)

    def change(
        self,
        ids: Integers,
        gradients: Floats,
        *,
        lr: float,
        places: Callable[[Ids], Places],
        threads: int = 1,
    ) -> None:
        """The same update, which adds what it changed, old XOR new of each row's record, to what is at its place.

        Args:
            ids: Rows, in any order, repeated or not.
            gradients: ``[ids, dim]``: one for each id.
            lr: The learning rate of this push.
            places: Of the rows that change, each once and ascending: where their differences go.
            threads: How many share the work.
        """
        groups, gradients = self._grouped(ids, gradients)
        if len(groups.rows):
            self._update(groups, gradients, lr, threads, places(groups.rows))

    def _update(self, groups: Groups, gradients: Floats, lr: float, threads: int, places: Places) -> None:
        rule, weights, slots, update = self._rule, self._weights, self._slots, _kernels().update
        numbers = Numbers(lr=lr, momentum=rule.momentum, beta1=rule.beta1, beta2=rule.beta2, eps=rule.eps)
        in_parts(
            len(groups.rows),
            lambda part: update(rule.method, numbers, groups, part, gradients, weights, slots, places),
            threads=threads,
            part_rows=_PART,
        )

    def _grouped(self, ids: Integers, gradients: Floats) -> tuple[Groups, Floats]:
        rows, dim = self._weights.shape
        known, gradients = _checked(ids, gradients, dim)
        if _require_inside(known, rows) == ASCENDING:
            return _each_alone(known), gradients
        return _kernels().group(known, rows), gradients

    @cached_property
    def _every_row(self) -> Ids:
        return np.arange(self._weights.shape[0])


def warm_up() -> None:
    """Compile or load now what updates need, so that no push waits for it."""
    _kernels()


def _each_alone(rows: Ids) -> Groups:
    return Groups(rows=rows, starts=_NO_IDS, order=_NO_IDS)


def _checked(ids: Integers, gradients: Floats, dim: int) -> tuple[Ids, Floats]:
    """Both as kernels take them."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ConfigurationError(f"ids must be integers in one dimension, got {ids.dtype} of shape {ids.shape}")
    wanted = (ids.shape[0], dim)
    if gradients.dtype != np.float32 or gradients.shape != wanted:
        found = f"{gradients.dtype} of shape {gradients.shape}"
        raise ConfigurationError(f"gradients of {len(ids)} ids must be float32 of shape {wanted}, got {found}")
    return plain(ids.astype(np.int64, copy=False)), plain(gradients)


def _require_inside(ids: Ids, rows: int) -> int:
    """Refuse an id outside the shard; else what ``find_outside`` says of their order."""
    found = _kernels().find_outside(ids, rows)
    if found >= 0:
        raise ConfigurationError(f"row {ids[found]} is outside a shard of {rows} rows")
    return found


def _in_order(rule: UpdateRule, slots: Mapping[str, Floats], rows: int, dim: int) -> Slots:
    """The rule's slots as kernels take them."""
    if tuple(slot.single for slot in rule.slots) != _SINGLE_SLOTS[rule.method]:
        raise ConfigurationError(f"{rule.method.value} does not work with the slots {rule.slots}")
    if set(slots) != (wanted := {slot.name for slot in rule.slots}):
        names = ", ".join(sorted(wanted)) or "none"
        raise ConfigurationError(f"{rule.method.value} has the slots {names}, got {', '.join(sorted(slots)) or 'none'}")
    found = [slots[slot.name] for slot in rule.slots]
    for slot, values in zip(rule.slots, found, strict=True):
        _require_plain(f"slot {slot.name}", values, (rows, *slot.column(dim).row_shape))
    matrices = [values.reshape(rows, 1 if slot.single else dim) for slot, values in zip(rule.slots, found, strict=True)]
    return Slots(*matrices, *[_NO_SLOT] * (3 - len(matrices)))


def _require_plain(name: str, values: Floats, shape: tuple[int, ...]) -> None:
    flags = values.flags
    if values.dtype != np.float32 or values.shape != shape:
        found = f"{values.dtype} of shape {values.shape}"
        raise ConfigurationError(f"{name} must be float32 of shape {shape}, got {found}")
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise ConfigurationError(f"{name} must be C-contiguous, aligned and writable: it is updated in place")


class _Kernels(Protocol):
    def find_outside(self, ids: Ids, rows: int, /) -> int: ...
    def group(self, ids: Ids, rows: int, /) -> Groups: ...
    def sum_groups(self, groups: Groups, gradients: Floats, /) -> Floats: ...
    def update(
        self, method: UpdateMethod, numbers: Numbers, groups: Groups, part: slice,
        gradients: Floats, weights: Floats, slots: Slots, places: Places, /,
    ) -> None: ...  # fmt: skip


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.optimize import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.optimize import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
