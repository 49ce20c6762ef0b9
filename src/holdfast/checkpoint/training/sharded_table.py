"""Tables that are DTensors: what a rank holds of their rows and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.training.dtensors import (
    divided_like,
    has_same_division,
    is_divided,
    is_dtensor,
    is_on_mesh_of,
    local_of,
)
from holdfast.checkpoint.training.extent import Extent
from holdfast.checkpoint.training.forms import has_form
from holdfast.checkpoint.training.slot_names import WEIGHT, named_slots, slot_key
from holdfast.checkpoint.training.tables import Embedding, Table, is_number
from holdfast.format.dtypes import torch_dtype
from holdfast.types import ColumnSpec


class ShardedTable(Table):
    """A table whose weight is a DTensor, which it stands for; or a strip of one, which this rank may not hold.

    ``parameter`` is the memory that the DTensor is made of at the time. No dataclass: there it would be a field.
    """

    def __init__(
        self,
        *,
        name: str,
        weight: nn.Parameter,
        extent: Extent,
        modules: tuple[Embedding, ...] = (),
        held_in: Callable[[Embedding], object] = lambda module: module._parameters.get(WEIGHT),
        elsewhere: nn.Parameter | None = None,
    ) -> None:
        """``held_in`` is what a module holds, whatever FSDP has put in its place.

        ``elsewhere`` is in the place of a strip that other ranks hold: no rows, but as many values.
        """
        self._elsewhere = elsewhere
        self._held_in = held_in
        self._holder: Optimizer | None = None  # of the DTensor, where this strip is elsewhere
        self._made: dict[str, Tensor] = {}
        super().__init__(name=name, parameter=weight, modules=modules, extent=extent, stands_for=weight)

    @property
    def parameter(self) -> nn.Parameter:
        """The rows and values of this rank."""
        return cast(nn.Parameter, local_of(self.source)) if self._elsewhere is None else self._elsewhere

    @parameter.setter
    def parameter(self, value: nn.Parameter) -> None:
        """It is what the DTensor says, always."""

    @property
    def source(self) -> nn.Parameter:
        """The DTensor."""
        assert self.stands_for is not None
        return self.stands_for

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the DTensor."""
        return tuple(self.source.shape)

    @property
    def optimized(self) -> nn.Parameter:
        """The DTensor, as far as it is here."""
        return self.source if self._elsewhere is None else self._elsewhere

    def attach(self, optimizer: Optimizer) -> None:
        """One of the optimizers holds the DTensor."""
        if self._elsewhere is None:
            self.optimizer = optimizer
        else:
            self._holder = optimizer

    def is_in(self, module: Embedding) -> bool:
        """Whether a module still holds the DTensor."""
        return self._held_in(module) is self.stands_for

    def local(self, gradient: Tensor) -> Tensor | None:
        """This rank's rows of a gradient; None where it is divided in another way.

        Under ``RowwiseParallel`` every rank has all of it.
        """
        if has_same_division(gradient, self.source):
            return local_of(gradient)
        if not is_on_mesh_of(gradient, self.source) or is_divided(gradient):
            return None
        rows, values = self.parameter.shape
        first, value = (0, 0) if self.extent is None else (self.extent.first, self.extent.value)
        return local_of(gradient)[first : first + rows, value : value + values]

    def counted(self) -> list[Tensor]:
        """The DTensors: an optimizer's changes are counted there, those through ``to_local()`` in the memory itself."""
        return [] if self._elsewhere is not None else [self.source, *self._divided_slots().values()]

    def slots(self) -> dict[str, Tensor]:
        """This rank's part of the optimizer's DTensors that have one entry per row."""
        return {name: self._part(name, slot) for name, slot in self._divided_slots().items()}

    def is_slot(self, value: object) -> bool:
        """Whether a value of the optimizer's state is divided like the rows."""
        if not isinstance(value, Tensor) or value.dim() < 1 or not has_same_division(value, self.stands_for):
            return False
        by_rows = self.extent is None or self.extent.width == self.parameter.shape[1]
        return value.shape[0] == self.whole_shape[0] if by_rows else tuple(value.shape) == self.whole_shape

    def ensure_slots(self, columns: Sequence[ColumnSpec]) -> dict[str, Tensor]:
        """The live slots to write rows into, made as DTensors where there are none.

        Also by a strip that is elsewhere: a rank may hold no values of a table at all, and its optimizer must still
        keep a part of every slot, as those of the other ranks do.
        """
        holder = self._held_by()
        if holder is None:
            return {}
        state = holder.state[self.source]
        wanted = {column.name: column for column in columns if not is_number(state.get(slot_key(column.name)))}
        for name in self._divided_slots().keys() - wanted.keys():  # going back to before the first step
            del state[slot_key(name)]
        for name, column in wanted.items():
            shape, dtype = self._whole(column.row_shape), torch_dtype(column.dtype)
            live = state.get(slot_key(name))
            if not (is_dtensor(live) and has_form(live, shape, dtype) and self.is_slot(live)):
                state[slot_key(name)] = divided_like(self._own_part(shape, dtype), self.source, shape)
        if not state:
            del holder.state[self.source]
        return {name: self._part(name, state[slot_key(name)]) for name in wanted}

    def _held_by(self) -> Optimizer | None:
        """The optimizer of the DTensor, wherever this strip is."""
        return self.optimizer or self._holder

    def _divided_slots(self) -> dict[str, Tensor]:
        holder = self._held_by()
        state = holder.state.get(self.source, {}) if holder is not None else {}
        return named_slots({key: value for key, value in state.items() if self.is_slot(value)}, f"table {self.name!r}")

    def _whole(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a slot's DTensor, of which a rank's rows have that shape."""
        per_value = row_shape == self.row_shape
        return (self.whole_shape[0], *(self.whole_shape[1:] if per_value else row_shape))

    def _part(self, name: str, slot: Tensor) -> Tensor:
        """What this rank holds of a slot in this strip."""
        return local_of(slot) if self._elsewhere is None else self._none_of(name, slot)

    def _own_part(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """This rank's part of a new slot of that shape: of the rows that it holds of the weight, and of the values."""
        held = tuple(local_of(self.source).shape)
        own = held if shape == self.whole_shape else (held[0], *shape[1:])
        return torch.zeros(own, dtype=dtype, device=self.source.device)

    def _none_of(self, name: str, slot: Tensor) -> Tensor:
        """A slot of a strip that is on other ranks; the same tensor as long as it stays the same."""
        shape = (0, *(self.row_shape if tuple(slot.shape) == self.whole_shape else slot.shape[1:]))
        if not has_form(self._made.get(name), shape, slot.dtype):
            self._made[name] = torch.empty(shape, dtype=slot.dtype, device=slot.device)
        return self._made[name]
