"""A checkpoint of a Checkpointer or a Cluster, as DCP would have saved the same training.

The flat names are those of ``{"model": ..., "optimizer": ..., "extra": ..., "step": ...}``, where the optimizers' state
goes by the parameters' names, as ``torch.distributed.checkpoint.state_dict`` returns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.arrays import ArrayColumn
from holdfast.checkpoint.restore.rows import WantedRows, write_rows
from holdfast.checkpoint.restore.saved_state import checked_state, shared_state
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_state, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.checkpoint.training.slot_names import slot_key, weight_name
from holdfast.format.catalog import Entry
from holdfast.format.dtypes import array_dtype, torch_dtype
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree, encode_tree
from holdfast.integrations.dcp.boxes import BoxCopy, flat_bytes, narrowed
from holdfast.integrations.dcp.contents import described_tensor
from holdfast.types import ColumnSpec

_SLAB_BYTES = 64 << 20  # of rows, read at a time where they cannot be read into their place


@dataclass(frozen=True, slots=True)
class _Column:
    """Stands for a column of a table."""

    table: str
    spec: ColumnSpec
    rows: int

    @property
    def size(self) -> tuple[int, ...]:
        return self.rows, *self.spec.row_shape


@dataclass(frozen=True, kw_only=True)
class NativeCheckpoint:
    """One that was written by Holdfast's own trainers."""

    fetcher: Fetcher
    entry: Entry
    first: Manifest
    plans: Mapping[str, TablePlan]
    root: str | None  # the key that the model has in the state dict to load; None: the state dict is the model's

    @classmethod
    def open(cls, fetcher: Fetcher, head: Head, entry: Entry, *, root: str | None) -> NativeCheckpoint:
        """Read what it holds, without tensors and rows."""
        plans = plan_checkpoint(fetcher, head, entry.info.id)
        return cls(fetcher=fetcher, entry=entry, first=fetcher.parts(entry)[0], plans=plans, root=root)

    def metadata(self) -> Metadata:
        """What DCP's planners plan from."""
        described: dict[str, Any] = {}
        for name, value in self._flat.items():
            form = self._form(value)
            described[name] = BytesStorageMetadata() if form is None else described_tensor(*form, [_whole(form[1])])
        return Metadata(state_dict_metadata=described, planner_data=self._paths)

    def value(self, name: str) -> Any:
        """One that is not a tensor. Those that hold tensors inside are rare: for them the whole state is read."""
        value = self._flat[name]
        return self._read[name] if encode_tree(value).tensors else value

    def fill(self, copies: Sequence[BoxCopy]) -> None:
        """Copy boxes of tensors to where they are wanted."""
        rows: list[tuple[BoxCopy, _Column]] = []
        dense: list[tuple[BoxCopy, Any]] = []
        for copy in copies:
            found = self._flat[copy.key[0]]
            (rows if isinstance(found, _Column) else dense).append((copy, found))
        self._fill_dense(dense)
        self._fill_rows(rows)

    def _form(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        if isinstance(value, _Column):
            return value.spec.dtype, value.size
        number = self._numbers.get(id(value))
        return None if number is None else (self.first.tensors[number].dtype, self.first.tensors[number].shape)

    @cached_property
    def _empty(self) -> list[Tensor]:
        """The state's tensors, without memory for their elements."""
        return [torch.zeros((), dtype=torch_dtype(spec.dtype)).expand(spec.shape) for spec in self.first.tensors[1:]]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(tensor): number for number, tensor in enumerate(self._empty, start=1)}

    @cached_property
    def _flattened(self) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
        skeleton = read_tensors(self.fetcher, self.first, {SKELETON})[SKELETON]
        return flatten_state_dict(self._nested(decode_tree(bytes(skeleton), self._empty)))

    @property
    def _flat(self) -> dict[str, Any]:
        return self._flattened[0]

    @property
    def _paths(self) -> dict[str, tuple[Any, ...]]:
        return self._flattened[1]

    @cached_property
    def _read(self) -> dict[str, Any]:
        """By flat name, with the elements of tensors."""
        flat, _ = flatten_state_dict(self._nested(read_state(self.fetcher, self.first)))
        return flat

    def _nested(self, tree: object) -> dict[str, Any]:
        """The state dict that the checkpoint would have been saved from."""
        training = shared_state(checked_state(tree, self.first), self.first).training
        model = {**training["model"], **{_extra_state(name): value for name, value in training["modules"].items()}}
        model |= {weight_name(name): self._column(name, plan.spec.weight) for name, plan in self.plans.items()}
        if self.root is None:
            return model
        nested = {self.root: model, "extra": training["extra"], "step": self.entry.info.step}
        optimizers = training["optimizers"]
        return {**nested, "optimizer": self._optimizer(optimizers)} if optimizers else nested

    def _optimizer(self, optimizers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All optimizers as one, as ``get_optimizer_state_dict`` returns them."""
        state = {name: dict(values) for each in optimizers for name, values in each["state"].items()}
        for name, plan in self.plans.items():
            slots = {slot_key(slot.name): self._column(name, slot) for slot in plan.spec.slots}
            if slots:
                state[weight_name(name)] = {**state.get(weight_name(name), {}), **slots}
        groups = [
            {**group["options"], "params": group["parameters"]} for each in optimizers for group in each["groups"]
        ]
        return {"state": state, "param_groups": groups}

    def _column(self, table: str, spec: ColumnSpec) -> _Column:
        return _Column(table, spec, self.plans[table].spec.rows)

    def _fill_dense(self, copies: Sequence[tuple[BoxCopy, Any]]) -> None:
        numbers = {self._numbers[id(found)] for _, found in copies}
        data = read_tensors(self.fetcher, self.first, numbers)
        for copy, found in copies:
            number = self._numbers[id(found)]
            spec = self.first.tensors[number]
            tensor = as_tensor(memoryview(data[number]), spec.dtype, spec.shape)
            copy.target.copy_(narrowed(tensor, copy.offsets, copy.target.shape))

    def _fill_rows(self, copies: Sequence[tuple[BoxCopy, _Column]]) -> None:
        """Rows that are wanted whole are read into their place, all columns of a range at once; others go by slabs."""
        together: dict[tuple[str, range], dict[str, ArrayColumn]] = defaultdict(dict)
        for copy, column in copies:
            first = copy.offsets[0]
            rows = range(first, first + len(copy.target))
            is_wide = tuple(copy.target.shape[1:]) == column.spec.row_shape
            memory = flat_bytes(copy.target, column.spec.dtype) if is_wide else None
            if memory is None:
                self._fill_slabs(copy, column, rows)
            elif len(rows):
                array = memory.view(array_dtype(column.spec.dtype)).reshape(copy.target.shape)
                together[column.table, rows][column.spec.name] = ArrayColumn(array, first)
        wanted = [WantedRows(plan=self.plans[t], columns=found, rows=rows) for (t, rows), found in together.items()]
        write_rows(self.fetcher, wanted)

    def _fill_slabs(self, copy: BoxCopy, column: _Column, rows: range) -> None:
        at_once = max(1, _SLAB_BYTES // max(1, row_bytes([column.spec])))
        for start in rows[::at_once]:
            part = range(start, min(start + at_once, rows.stop))
            slab = torch.empty((len(part), *column.spec.row_shape), dtype=torch_dtype(column.spec.dtype))
            self._fill_rows([(BoxCopy(key=copy.key, offsets=(start, *_zeros(slab)), target=slab), column)])
            target = copy.target[start - rows.start : part.stop - rows.start]
            target.copy_(narrowed(slab, (0, *copy.offsets[1:]), target.shape))


def _whole(size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(0 for _ in size), size


def _zeros(slab: Tensor) -> tuple[int, ...]:
    return tuple(0 for _ in slab.shape[1:])


def _extra_state(module: str) -> str:
    return f"{module}._extra_state" if module else "_extra_state"
