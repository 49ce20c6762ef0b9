"""Single rows out of a checkpoint: newest generation first, reading only the blocks they lie in."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.checkpoint.columns import as_tensor, read_columns, row_ids
from holdfast.checkpoint.plan import Read, TablePlan
from holdfast.checkpoint.read import VerifiedReader
from holdfast.errors import ConfigurationError
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import IDS, Column


def lookup_rows(reader: VerifiedReader, plan: TablePlan, wanted: Tensor) -> dict[str, Tensor]:
    """The columns of the wanted rows, in the order they were asked for (an id may come twice)."""
    _check_ids(plan, wanted)
    unique, back = torch.unique(wanted, return_inverse=True)
    columns = plan.spec.columns
    found = {c.name: torch.zeros((len(unique), *c.row_shape), dtype=torch_dtype(c.dtype)) for c in columns}
    missing = torch.ones(len(unique), dtype=torch.bool)
    for generation in reversed(plan.generations):
        for read in generation:
            _take(reader, plan, read, unique, missing, found)
    return {name: rows[back] for name, rows in found.items()}


def _check_ids(plan: TablePlan, wanted: Tensor) -> None:
    outside = wanted[(wanted < 0) | (wanted >= plan.spec.rows)]
    if len(outside):
        has = f"the rows 0 to {plan.spec.rows - 1}" if plan.spec.rows else "no rows"
        raise ConfigurationError(f"table {plan.spec.name} has {has}; there is no row {int(outside[0])}")


def _take(
    reader: VerifiedReader, plan: TablePlan, read: Read, unique: Tensor, missing: Tensor, found: dict[str, Tensor]
) -> None:
    """Fill in the rows that this chunk holds and no newer one did."""
    chunk = read.chunk
    here = torch.nonzero(missing & (unique >= chunk.first) & (unique <= chunk.last)).reshape(-1)
    if not len(here):
        return
    columns = {column.name: column for column in read.columns}
    rows = unique[here] - chunk.first
    if chunk.ids is not None:
        ids, order = torch.sort(_ids(reader, read))  # arranged ones are sorted by segments
        hit = torch.searchsorted(ids, unique[here]).clamp(max=len(ids) - 1)
        present = ids[hit] == unique[here]
        here, rows = here[present], order[hit[present]]
        rows, order = torch.sort(rows)
        here = here[order]
    for spec in plan.spec.columns:
        for part, positions in _runs(columns[spec.name], rows):
            data = reader.chunk(read.bundle, chunk.place, part.start, part.stop)
            size = columns[spec.name].length // chunk.rows
            block = as_tensor(data, spec.dtype, (len(data) // size if size else 0, *spec.row_shape))
            low = (part.start - columns[spec.name].offset) // size if size else 0
            found[spec.name][here[positions]] = block[rows[positions] - low]
    missing[here] = False


def _ids(reader: VerifiedReader, read: Read) -> Tensor:
    ids = row_ids(read, read_columns(reader, read, {IDS}))
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
