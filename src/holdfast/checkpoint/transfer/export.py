"""Exports a checkpoint as one plain file, and computes the difference of two, for tools that know nothing of Holdfast.

Tables are assembled in a memory-mapped file on disk, so a model larger than memory can be exported.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.strips import WholeTable, is_per_value, place_in
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.training.tables import weight_name
from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import itemsize, torch_dtype
from holdfast.format.layout import padded
from holdfast.types import ColumnSpec

_ROWS_AT_ONCE = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """How a table changed between two checkpoints.

    Args:
        table: The table's name.
        rows: Its number of rows.
        changed_rows: Rows that differ in any bit.
        largest_change: The largest change of a weight.
        only_in: "first" or "second" if the other one lacks the table or has it in another shape.
    """

    table: str
    rows: int
    changed_rows: int
    largest_change: float
    only_in: str | None = None


def export_file(
    path: Path,
    fetcher: Fetcher,
    plans: Mapping[str, WholeTable],
    dense: Mapping[str, Tensor],
    *,
    slots: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write weights (and slots) under their state_dict names; ``.safetensors`` or a ``torch.save`` file by suffix."""
    if path.suffix not in (".safetensors", ".pt", ".pth", ".bin"):
        raise ConfigurationError(
            f"cannot infer a format from {path.name!r}: name it .safetensors, or .pt for torch.save"
        )
    if not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: folder {path.parent} does not exist")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # the file appears when it is complete
        assembled, saved = Path(scratch) / "tables.safetensors", Path(scratch) / "saved.pt"
        with _mapped(assembled, _layout(plans, dense, slots)) as tensors:
            _fill(tensors, fetcher, plans, dense, progress)
            if path.suffix != ".safetensors":
                torch.save(dict(tensors), saved)
        (assembled if path.suffix == ".safetensors" else saved).replace(path)


def require_safetensors(path: Path) -> None:
    """Refuse a file that ``write_file`` could not write."""
    if path.suffix != ".safetensors":
        raise ConfigurationError(f"cannot write {path.name!r}: name it .safetensors")
    if not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: folder {path.parent} does not exist")


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as one ``.safetensors`` file, which replaces the one before when it is complete."""
    require_safetensors(path)
    shapes = {name: form_of(tensor) for name, tensor in tensors.items()}
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        assembled = Path(scratch) / path.name
        with _mapped(assembled, shapes) as mapped:
            for name, tensor in tensors.items():
                mapped[name].copy_(tensor)
        assembled.replace(path)


def difference(
    fetcher: Fetcher, first: Mapping[str, WholeTable], second: Mapping[str, WholeTable], scratch: Path
) -> Iterator[TableDifference]:
    """Compare two checkpoints table by table, bit for bit."""
    for name in sorted({*first, *second}):
        yield _table_difference(fetcher, name, first.get(name), second.get(name), scratch)


def _table_difference(
    fetcher: Fetcher, name: str, first: WholeTable | None, second: WholeTable | None, scratch: Path
) -> TableDifference:
    if (
        first is None
        or second is None
        or first.spec.weight != second.spec.weight
        or first.spec.rows != second.spec.rows
    ):
        present = first or second
        assert present is not None
        return TableDifference(
            table=name,
            rows=present.spec.rows,
            changed_rows=present.spec.rows,
            largest_change=math.nan,
            only_in="second" if first is None else "first",
        )
    with (
        _mapped(scratch / "first.safetensors", _layout({name: first}, {}, False)) as a,
        _mapped(scratch / "second.safetensors", _layout({name: second}, {}, False)) as b,
    ):
        _fill(a, fetcher, {name: first}, {}, None)
        _fill(b, fetcher, {name: second}, {}, None)
        changed, largest = _compare(a[weight_name(name)], b[weight_name(name)])
    return TableDifference(table=name, rows=first.spec.rows, changed_rows=changed, largest_change=largest)


def _compare(a: Tensor, b: Tensor) -> tuple[int, float]:
    changed, largest = 0, 0.0
    for start in range(0, len(a), _ROWS_AT_ONCE):
        x, y = a[start : start + _ROWS_AT_ONCE], b[start : start + _ROWS_AT_ONCE]
        same = (_row_bits(x) == _row_bits(y)).all(1)
        changed += int((~same).sum())
        if not bool(same.all()):
            found = float((x[~same].double() - y[~same].double()).abs().max())
            largest = found if math.isnan(found) else max(largest, found)
    return changed, largest


def _row_bits(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)


def _layout(
    plans: Mapping[str, WholeTable], dense: Mapping[str, Tensor], slots: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for table in plans.values():
        for plan in table.strips:
            for column in plan.spec.columns:
                if not (slots or column.is_keyed or column == plan.spec.weight):
                    continue
                shape = table.spec.column(column.name).row_shape
                shapes[_column_name(table, plan, column)] = (column.dtype, (plan.spec.rows, *shape))
    return shapes | {name: form_of(tensor) for name, tensor in dense.items()}


def _column_name(table: WholeTable, plan: TablePlan, column: ColumnSpec) -> str:
    """Under which a column is exported; a slot that has an entry per row in each strip has one tensor per strip."""
    if column.name == plan.spec.weight.name:
        return weight_name(table.spec.name)
    is_split = column.name in table.split_slots
    return f"{weight_name(plan.spec.name if is_split else table.spec.name)}.{column.name}"


def _fill(
    tensors: Mapping[str, Tensor],
    fetcher: Fetcher,
    plans: Mapping[str, WholeTable],
    dense: Mapping[str, Tensor],
    progress: Progress | None,
) -> None:
    targets = []
    for table in plans.values():
        for plan in table.strips:
            columns = {column: tensors.get(_column_name(table, plan, column)) for column in plan.spec.columns}
            placed = {
                column.name: place_in(tensor, plan.spec) if is_per_value(plan.spec, column) else tensor
                for column, tensor in columns.items()
                if tensor is not None
            }
            targets.append((plan, placed))
    restore_rows(fetcher, targets, progress=progress)
    for name, tensor in dense.items():
        tensors[name].copy_(tensor)


@contextmanager
def _mapped(path: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[dict[str, Tensor]]:
    """A new safetensors file whose tensors are mapped into memory to be filled in."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -itemsize(item[1][0])):
        length = math.prod(shape) * itemsize(dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + length]}
        position += length
    text = json.dumps(header).encode()
    text += b" " * (padded(len(text)) - len(text))
    with path.open("wb+") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0)  # closed by the last tensor that looks at it
        yield {name: _view(mapped, 8 + len(text), header[name]) for name in shapes}
        mapped.flush()


def _view(mapped: mmap.mmap, start: int, entry: Mapping[str, Any]) -> Tensor:
    low, high = entry["data_offsets"]
    dtype = torch_dtype(entry["dtype"])
    if low == high:
        return torch.empty(entry["shape"], dtype=dtype)
    count = (high - low) // itemsize(entry["dtype"])
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start + low).view(entry["shape"])
