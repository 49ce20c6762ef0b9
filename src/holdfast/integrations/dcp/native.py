"""A checkpoint of a Checkpointer or a Cluster, as DCP would have saved the same training.

The flat names are those of ``{"model": ..., "optimizer": ..., "extra": ..., "step": ...}``, where the optimizers' state
goes by the parameters' names, as ``torch.distributed.checkpoint.state_dict`` returns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.strips import WholeTable, is_per_value, join_strips, values_of
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.arrays import ArrayColumn
from holdfast.checkpoint.restore.rows import WantedRows, write_rows
from holdfast.checkpoint.restore.saved_state import checked_state, shared_state
from holdfast.checkpoint.restore.scattered import PartTiles, ScatteredTensor
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_state, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.checkpoint.training.slot_names import slot_key, weight_name
from holdfast.format.boxes import Box
from holdfast.format.catalog import Entry
from holdfast.format.document import parse
from holdfast.format.dtypes import array_dtype, torch_dtype
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import Manifest
from holdfast.format.scattered import Scattered
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
    parts: Manifests
    tables: Mapping[str, WholeTable]
    root: str | None  # the key that the model has in the state dict to load; None: the state dict is the model's

    @classmethod
    def open(cls, fetcher: Fetcher, head: Head, entry: Entry, *, root: str | None) -> NativeCheckpoint:
        """Read what it holds, without tensors and rows."""
        name = entry.part_list.name
        tables = parse(name, lambda: join_strips(plan_checkpoint(fetcher, head, entry.info.id)))
        return cls(fetcher=fetcher, entry=entry, parts=fetcher.parts(entry), tables=tables, root=root)

    @property
    def first(self) -> Manifest:
        """The part that holds what all ranks share."""
        return self.parts[0]

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
            if isinstance(found, Scattered):
                box = Box(offsets=tuple(copy.offsets), sizes=tuple(copy.target.shape))
                copy.target.copy_(ScatteredTensor(self._tiles, found).read(box))
            else:
                (rows if isinstance(found, _Column) else dense).append((copy, found))
        self._fill_dense(dense)
        self._fill_rows(rows)

    def _form(self, value: Any) -> tuple[str, tuple[int, ...]] | None:
        if isinstance(value, _Column):
            return value.spec.dtype, value.size
        if isinstance(value, Scattered):
            return value.dtype, value.shape
        number = self._numbers.get(id(value))
        return None if number is None else (self.first.tensors[number].dtype, self.first.tensors[number].shape)

    @cached_property
    def _tiles(self) -> PartTiles:
        return PartTiles(self.fetcher, self.parts)

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
        model |= {weight_name(name): self._column(name, each.spec.weight) for name, each in self.tables.items()}
        model |= {
            f"{weight_name(name)}.{column.name}": self._column(name, column)
            for name, each in self.tables.items()
            for column in each.spec.slots
            if column.is_keyed
        }
        if self.root is None:
            return model
        nested = {self.root: model, "extra": training["extra"], "step": self.entry.info.step}
        optimizers = training["optimizers"]
        return {**nested, "optimizer": self._optimizer(optimizers)} if optimizers else nested

    def _optimizer(self, optimizers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All optimizers as one, as ``get_optimizer_state_dict`` returns them."""
        state = {name: dict(values) for each in optimizers for name, values in each["state"].items()}
        for name, table in self.tables.items():
            slots = {slot_key(slot.name): self._column(name, slot) for slot in table.spec.slots if not slot.is_keyed}
            if slots:
                state[weight_name(name)] = {**state.get(weight_name(name), {}), **slots}
        groups = [
            {**group["options"], "params": group["parameters"]} for each in optimizers for group in each["groups"]
        ]
        return {"state": state, "param_groups": groups}

    def _column(self, table: str, spec: ColumnSpec) -> _Column:
        return _Column(table, spec, self.tables[table].spec.rows)

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
        together: dict[tuple[TablePlan, range], dict[str, ArrayColumn]] = defaultdict(dict)
        stored = [each for wanted, column in copies for each in self._in_strips(wanted, column)]
        for copy, plan, spec in stored:
            first = copy.offsets[0]
            rows = range(first, first + len(copy.target))
            is_wide = tuple(copy.target.shape[1:]) == spec.row_shape
            memory = flat_bytes(copy.target, spec.dtype) if is_wide else None
            if memory is None:
                self._fill_slabs(copy, plan, spec, rows)
            elif len(memory):
                array = memory.view(array_dtype(spec.dtype)).reshape(copy.target.shape)
                together[plan, rows][spec.name] = ArrayColumn(array, first)
        wanted = [WantedRows(plan=plan, columns=found, rows=rows) for (plan, rows), found in together.items()]
        write_rows(self.fetcher, wanted)

    def _in_strips(self, copy: BoxCopy, column: _Column) -> Iterator[tuple[BoxCopy, TablePlan, ColumnSpec]]:
        """A copy from each stored table that holds some of its values."""
        table = self.tables[column.table]
        for plan in table.strips:
            (spec,) = [each for each in plan.spec.columns if each.name == column.spec.name]
            if table.is_single or not is_per_value(plan.spec, spec):
                yield copy, plan, spec
                return
            held, first = values_of(plan.spec), copy.offsets[1]
            low, high = max(held.start, first), min(held.stop, first + copy.target.shape[1])
            if low < high:
                target = copy.target[:, low - first : high - first]
                yield BoxCopy(key=copy.key, offsets=(copy.offsets[0], low - held.start), target=target), plan, spec

    def _fill_slabs(self, copy: BoxCopy, plan: TablePlan, spec: ColumnSpec, rows: range) -> None:
        at_once = max(1, _SLAB_BYTES // max(1, row_bytes([spec])))
        for start in rows[::at_once]:
            part = range(start, min(start + at_once, rows.stop))
            slab = np.empty((len(part), *spec.row_shape), dtype=array_dtype(spec.dtype))
            column = ArrayColumn(slab, start)
            write_rows(self.fetcher, [WantedRows(plan=plan, columns={spec.name: column}, rows=part)])
            found = as_tensor(slab.reshape(-1).view(np.uint8).data, spec.dtype, slab.shape)
            target = copy.target[start - rows.start : part.stop - rows.start]
            target.copy_(narrowed(found, (0, *copy.offsets[1:]), target.shape))


def _whole(size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(0 for _ in size), size


def _extra_state(module: str) -> str:
    return f"{module}._extra_state" if module else "_extra_state"
