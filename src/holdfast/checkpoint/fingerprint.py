"""Notices that a table or its slots were changed behind the optimizer's back.

Torch counts the in-place changes of every tensor (``_version``). What it does not count: writes through ``.data`` or a
NumPy view (``mark`` is for those), a new tensor behind ``.data`` (the address tells), fused optimizers.
"""

from __future__ import annotations

from operator import sub
from typing import Any

from torch import Tensor

from holdfast.checkpoint.tables import Table

_NO_STATE: dict[str, Any] = {}


class Fingerprint:
    """Identity and version of a table's weight and slots when they were last accounted for."""

    __slots__ = ("_address", "_entries", "_parameter", "_slots", "_state", "_table", "_tensors", "_versions")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._parameter = table.parameter
        self.take()

    def take(self) -> None:
        """Account for everything up to now."""
        self._state = self._current_state()
        self._entries = len(self._state)
        self._slots = self._table.slots()
        self._tensors: list[Tensor] = [self._parameter, *self._slots.values()]
        self._address = self._parameter.data_ptr()
        try:
            self._versions = [tensor._version for tensor in self._tensors]
        except RuntimeError:  # made in inference mode, where nothing is counted
            self._versions = []

    def is_unchanged(self) -> bool:
        """Whether no tensor changed in place since: the quick part of ``advance(0)``, which sees replaced slots too."""
        if not self._versions or self._parameter.data_ptr() != self._address:
            return False
        return [tensor._version for tensor in self._tensors] == self._versions

    def advance(self, changes: int) -> bool:
        """Account for everything up to now; whether that was at most so many in-place changes of each tensor."""
        before, address = self._versions, self._address
        if self._has_same_slots():
            self._address = self._parameter.data_ptr()
            self._versions = [tensor._version for tensor in self._tensors]
        else:
            is_first_step = not self._entries  # makes the slots: new columns, which show in the table's spec
            self.take()
            if not is_first_step:
                return False
        if not before or not self._versions or self._address != address:
            return False
        most: int = max(map(sub, self._versions, before))
        return most <= changes

    def _has_same_slots(self) -> bool:
        state = self._current_state()
        if not self._versions or state is not self._state or len(state) != self._entries:
            return False
        for name, slot in self._slots.items():  # noqa: SIM110 - `all` costs more, and this runs in every step
            if state.get(name) is not slot:
                return False
        return True

    def _current_state(self) -> dict[str, Any]:
        optimizer = self._table.optimizer
        return _NO_STATE if optimizer is None else optimizer.state.get(self._parameter, _NO_STATE)


def version_of(tensor: Tensor) -> int | None:
    """How often it was changed in place; None where nobody counts, for tensors made in inference mode."""
    try:
        return tensor._version
    except RuntimeError:
        return None
