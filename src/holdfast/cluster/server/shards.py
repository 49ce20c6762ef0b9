"""What a server keeps, as the checkpoint plane sees it: row ranges of tables, large and small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from holdfast.checkpoint.shards import Shard
from holdfast.cluster.placement import Group, Placement
from holdfast.cluster.plan import DenseSpec
from holdfast.cluster.shard import DenseShard, GroupShard
from holdfast.cluster.shard import Shard as ServerShard
from holdfast.kernels import optimize


class TableShard(NamedTuple):
    """A server's rows of one large table, and where they are."""

    group: int  # number of the group
    rows: slice  # of the group's arrays
    shard: Shard


def group_name(group: Group) -> str:
    """Under which the rows of a group are marked."""
    return f"width {group.width}"


def shards_of(rows: ServerShard) -> Iterator[Shard]:
    """Of every table, also of those of which this server has no row."""
    yield from (each.shard for each in table_shards(rows))
    yield from dense_tables(rows)


def table_shards(rows: ServerShard) -> Iterator[TableShard]:
    """Of every large table."""
    for number, group in enumerate(rows.groups):
        for at, shard in _shards(rows.placement, group):
            yield TableShard(number, at, shard)


def dense_tables(rows: ServerShard) -> Iterator[Shard]:
    """Embeddings that are too small for a table of their own: dense here, tables to whoever reads the run."""
    for spec in rows.placement.plan.dense:
        if spec.table is not None:
            yield _dense_table(spec, spec.table, rows.dense)


def _shards(placement: Placement, held: GroupShard) -> Iterator[tuple[slice, Shard]]:
    group = held.group
    ranges = {each.table: each for each in group.ranges(held.server)}
    for table in group.tables:
        spec, found = placement.plan.tables[table], ranges.get(table)
        first, at, count = (0, 0, 0) if found is None else (found.first, found.at, found.end - found.first)
        rows = slice(at, at + count)
        columns = {name: values[rows] for name, values in (("weight", held.weights), *held.slots.items())}
        shard = Shard(
            table=spec.name.removesuffix(".weight"),
            rows=spec.rows,
            first=first,
            columns=columns,
            group=group_name(group),
        )
        yield rows, shard


def _dense_table(spec: DenseSpec, table: str, dense: DenseShard) -> Shard:
    part = next((each for each in dense.piece.parts if each.name == spec.name), None)
    if part is None:
        slots = optimize.new_slots(dense.rule, 0, spec.width)
        return Shard(table=table, rows=spec.rows, first=0, columns={"weight": np.empty((0, spec.width), "f4"), **slots})
    weight = dense.values[part.at : part.at + part.rows * part.width].reshape(part.rows, part.width)
    return Shard(table=table, rows=spec.rows, first=part.first, columns={"weight": weight, **dense.slots[spec.name]})
