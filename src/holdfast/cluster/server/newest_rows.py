"""Loads some rows of a server, as they were saved last, and leaves the others alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.checkpoint.shards import Loaded, Shard, ShardedRun
from holdfast.cluster.payload import Numbers
from holdfast.cluster.saved import load_dense, load_missing
from holdfast.cluster.server.shards import dense_tables, table_shards
from holdfast.cluster.shard import Shard as ServerShard


def load_newest_rows(run: ShardedRun, rows: ServerShard, wanted: Sequence[Numbers], *, dense: bool) -> Loaded:
    """Put what was saved last into some rows. Tables of which all are wanted are read in place, others one by one.

    Raises CheckpointNotFound where nothing was ever saved.

    Args:
        run: Where it was saved.
        rows: What the server keeps.
        wanted: Of each group, the rows of its array.
        dense: Whether the dense part is wanted as well.
    """
    found = [(each, _within(each.rows, wanted[each.group])) for each in table_shards(rows)]
    whole = [each.shard for each, mine in found if len(mine) == each.shard.count]
    whole.extend(dense_tables(rows) if dense else ())
    loaded = run.load_newest(whole, state=True)
    load_missing(rows, whole, loaded)
    if dense:
        assert loaded.state is not None
        load_dense(rows.dense, loaded.state.training)
    for each, mine in found:
        if 0 < len(mine) < each.shard.count:
            _load_some(run, rows, each.shard, mine)
    return loaded


def _load_some(run: ShardedRun, rows: ServerShard, shard: Shard, mine: Numbers) -> None:
    copy = replace(shard, columns={name: np.empty_like(column) for name, column in shard.columns.items()})
    load_missing(rows, [copy], run.load_newest([copy], state=True))
    for name, column in shard.columns.items():
        column[mine] = copy.columns[name][mine]


def _within(rows: slice, wanted: Numbers) -> Numbers:
    first, last = np.searchsorted(wanted, [rows.start, rows.stop])
    mine: Numbers = wanted[first:last] - rows.start
    return mine
