"""Detects changes to a table or its slots made outside the optimizer.

Torch counts the in-place changes of every tensor (``_version``). It does not count writes through ``.data`` or a NumPy
view (``mark`` is for those), a new tensor behind ``.data``, or fused optimizers. The address alone does not reveal a
new tensor: two swaps in a row bring the old address back. A weak reference to the storage does: nothing else can take
that address while the reference exists, and it keeps none of the table's memory alive.

A DTensor and the memory that it is made of count apart: an optimizer's changes in one, those through ``to_local()`` in
the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import sub

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from holdfast.checkpoint.training.tables import Table


class Fingerprint:
    """Identity and version of a table's weight and slots when they were last accounted for."""

    __slots__ = ("_address", "_counted", "_memory", "_slots", "_table", "_tensors", "_versions")

    def __init__(self, table: Table) -> None:
        self._table = table
        self.take()

    def take(self) -> None:
        """Account for everything up to now, whatever it was."""
        self._slots = self._table.slots()
        parameter, counted = self._table.parameter, self._table.counted()
        with_memory: list[Tensor] = [parameter, *self._slots.values()]
        self._tensors = [*with_memory, *counted]
        self._counted = (counted[0], len(with_memory)) if counted else None  # of the weight, and its place
        self._address = parameter.data_ptr()
        self._memory = [(StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()) for tensor in with_memory]
        try:
            self._versions = [tensor._version for tensor in self._tensors]
        except RuntimeError:  # made in inference mode, where nothing is counted
            self._versions = []

    def weight_is_unchanged(self) -> bool:
        """Whether the weight was not changed since: the part of ``advance(0)`` that a step can afford twice."""
        parameter, versions, counted = self._table.parameter, self._versions, self._counted
        if not versions or parameter.data_ptr() != self._address or parameter._version != versions[0]:
            return False
        return counted is None or counted[0]._version == versions[counted[1]]

    def advance(self, changes: int) -> bool:
        """Account for in-place changes so far; whether there were at most this many per tensor."""
        before = self._versions
        if not before or self._table.parameter.data_ptr() != self._address:
            return False
        self._versions = [tensor._version for tensor in self._tensors]
        most: int = max(map(sub, self._versions, before))
        return most <= changes

    def is_unchanged(self) -> bool:
        """Whether neither the weight nor a slot was changed since; accounts for nothing."""
        if not (self.weight_is_unchanged() and self.has_same_slots() and self.has_same_memory()):
            return False
        return [tensor._version for tensor in self._tensors] == self._versions

    def has_same_memory(self) -> bool:
        """Whether weight and slots are still where they were: the part that no step can afford."""
        for tensor, (storage, address) in zip(self._tensors, self._memory, strict=False):
            if tensor.data_ptr() != address or tensor.untyped_storage()._cdata != storage.cdata:
                return False
        return True

    def has_same_slots(self, slots: Mapping[str, Tensor] | None = None) -> bool:
        """Whether every slot is still in place. Additional ones are new columns, which the table's spec shows.

        ``slots`` are those of now, if somebody has looked already.
        """
        slots = self._table.slots() if slots is None else slots
        return not self._slots or all([slots.get(name) is slot for name, slot in self._slots.items()])

    def knows(self, slots: Mapping[str, Tensor]) -> bool:
        """Whether there are no additional ones."""
        return len(slots) == len(self._slots)


def version_of(tensor: Tensor) -> int | None:
    """How often it was changed in place; None if that is not counted, for tensors made in inference mode."""
    try:
        return tensor._version
    except RuntimeError:
        return None
