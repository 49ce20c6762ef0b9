"""Looks up single rows of a checkpoint: newest generation first, reading only the blocks that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.strips import WholeTable
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.columns import read_columns, row_ids
from holdfast.checkpoint.restore.rows import BaselineRows
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.codec import Difference
from holdfast.codec.chunk import decode_column, dim_of, escapes_name, first_rows
from holdfast.errors import ConfigurationError
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import IDS, Column
from holdfast.types import ColumnSpec


def lookup_table(fetcher: Fetcher, whole: WholeTable, wanted: Tensor) -> dict[str, Tensor]:
    """The same of a table in strips. A slot with one entry per row and strip has a column for each strip."""
    found = [lookup_rows(fetcher, plan, wanted) for plan in whole.strips]
    if whole.is_single:
        return found[0]
    return {
        name: torch.cat([rows[name].reshape(len(wanted), -1) for rows in found], dim=1)
        for name in (column.name for column in whole.spec.columns)
    }


def lookup_rows(fetcher: Fetcher, plan: TablePlan, wanted: Tensor) -> dict[str, Tensor]:
    """The columns of the wanted rows, in the order they were asked for (an id may come twice)."""
    _check_ids(plan, wanted)
    unique, back = torch.unique(wanted, return_inverse=True)
    columns = plan.spec.columns
    found = {c.name: torch.zeros((len(unique), *c.row_shape), dtype=torch_dtype(c.dtype)) for c in columns}
    missing = torch.ones(len(unique), dtype=torch.bool)
    for generation in reversed(plan.generations):
        for read in generation:
            _take(fetcher, plan, read, unique, missing, found)
    return {name: rows[back] for name, rows in found.items()}


def _check_ids(plan: TablePlan, wanted: Tensor) -> None:
    outside = wanted[(wanted < 0) | (wanted >= plan.spec.rows)]
    if len(outside):
        has = f"the rows 0 to {plan.spec.rows - 1}" if plan.spec.rows else "no rows"
        raise ConfigurationError(f"table {plan.spec.name} has {has}; there is no row {int(outside[0])}")


def _take(
    fetcher: Fetcher, plan: TablePlan, read: Read, unique: Tensor, missing: Tensor, found: dict[str, Tensor]
) -> None:
    """Fill in the rows that this chunk holds and no newer one did."""
    chunk = read.chunk
    here = torch.nonzero(missing & (unique >= chunk.first) & (unique <= chunk.last)).reshape(-1)
    if not len(here):
        return
    columns = {column.name: column for column in read.columns}
    rows = unique[here] - chunk.first
    if chunk.ids is not None:
        ids, order = torch.sort(_ids(fetcher, read))  # arranged ones are sorted by segments
        hit = torch.searchsorted(ids, unique[here]).clamp(max=len(ids) - 1)
        present = ids[hit] == unique[here]
        here, rows = here[present], order[hit[present]]
        rows, order = torch.sort(rows)
        here = here[order]
    for spec in plan.spec.columns:
        stored = _read_rows(fetcher, read, columns[spec.name], rows)
        data = stored if read.codecs is None else _decoded(fetcher, plan, read, spec, stored, rows, unique[here])
        found[spec.name][here] = as_tensor(data, spec.dtype, (len(rows), *spec.row_shape))
    missing[here] = False


def _read_rows(fetcher: Fetcher, read: Read, column: Column, rows: Tensor) -> memoryview:
    """A column's entries for the rows at these places of a chunk, in the same order."""
    size = column.length // column.shape[0] if column.shape[0] else 0
    taken = np.empty((len(rows), size), dtype=np.uint8)
    for part, positions in _runs(column, rows):
        data = np.frombuffer(fetcher.chunk(read.bundle, read.chunk.place, part.start, part.stop), dtype=np.uint8)
        low = (part.start - column.offset) // size
        taken[positions.numpy()] = data.reshape(-1, size)[rows[positions].numpy() - low]
    return taken.reshape(-1).data


def _decoded(
    fetcher: Fetcher,
    plan: TablePlan,
    read: Read,
    spec: ColumnSpec,
    stored: memoryview,
    rows: Tensor,
    ids: Tensor,
) -> memoryview:
    assert read.codecs is not None
    codec, dim = read.codecs[spec.name], dim_of(spec)
    records = np.frombuffer(stored, dtype=np.uint8).reshape(len(rows), codec.bytes_per_row(dim, spec.dtype))
    escapes = memoryview(b"")
    if codec.escaped(records, dim, spec.dtype).any():  # which of the escapes they are, only all records tell
        column = read_columns(fetcher, read._replace(rows=read.chunk.rows), {spec.name})
        kept_rows = column.get(escapes_name(spec.name), escapes)
        every = first_rows(spec, codec, column[spec.name], kept_rows, read.chunk.rows, name=read.bundle.name)
        kept = np.cumsum(codec.escaped(every.records, dim, spec.dtype)) - 1
        flagged = codec.escaped(records, dim, spec.dtype)
        escapes = every.escapes[kept[rows.numpy()[flagged]]].reshape(-1).data
    beside = BaselineRows(fetcher, plan, {}).rows(read, ids.numpy()) if isinstance(codec, Difference) else None
    return decode_column(spec, codec, stored, escapes, len(rows), beside).data


def _ids(fetcher: Fetcher, read: Read) -> Tensor:
    ids = row_ids(read, read_columns(fetcher, read, {IDS}))
    assert ids is not None
    return torch.from_numpy(ids)


def _runs(column: Column, rows: Tensor) -> Iterator[tuple[range, Tensor]]:
    """Byte ranges of the chunk that hold the rows (sorted), each range near enough to be one read."""
    size = column.length // column.shape[0] if column.shape[0] else 0
    if not size or not len(rows):
        return
    gap_rows = max(1, BLOCK_BYTES // size)
    cuts = torch.nonzero(rows[1:] - rows[:-1] > gap_rows).reshape(-1) + 1
    for positions in torch.tensor_split(torch.arange(len(rows)), cuts):
        first, last = int(rows[positions[0]]), int(rows[positions[-1]])
        yield range(column.offset + first * size, column.offset + (last + 1) * size), positions
