"""Checks that all ranks hold the same rows under the same names, because each saves a share of every table.

A few rows are compared, bit by bit first. Ranks that applied the same gradients may differ in the last bits; such rows
count as equal. Tables that really differ are refused: a checkpoint would be a mixture of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError

ROWS = 16  # of each table that are compared
_VALUES = 16  # of each row
_TOLERANCE = 1e-4  # of a value: far more than rounding makes of it, less than a step does


RowIds = Mapping[str, Sequence[int]]  # some rows of each table; tables that are not named: any rows


def require_same_rows(tables: Sequence[Table], agreement: Agreement, chosen: Callable[[], RowIds] = dict) -> None:
    """Raise ConfigurationError, on all ranks, if a table holds other rows on one rank than on another.

    ``chosen`` is asked, on rank 0, which rows to compare.
    """
    if agreement.world == 1:
        return
    rows = agreement.broadcast(chosen() if agreement.rank == 0 else None)
    compared = [table for table in tables if table.extent is None and not _is_rewritten_by_lookups(table)]
    samples = {table.name: _sample(table, rows.get(table.name)) for table in compared}
    digests = agreement.gather([_digest(sample) for sample in samples.values()])
    suspects = [name for number, name in enumerate(samples) if len({each[number] for each in digests}) > 1]
    if not suspects:
        return
    first = agreement.broadcast([samples[name].tolist() for name in suspects])
    found = [name for name, other in zip(suspects, first, strict=True) if _differs(samples[name], torch.tensor(other))]
    by_rank = agreement.gather(found)
    for name in suspects:
        if ranks := [rank for rank, differing in enumerate(by_rank) if name in differing]:
            raise ConfigurationError(
                f"table {name!r} on rank {', '.join(map(str, ranks))} differs from rank 0: every rank must hold every "
                "table in full, as under DistributedDataParallel, because each saves a share of its rows. Sharded "
                "tables are not supported in this release; if the tables should be identical, broadcast their "
                "weights from rank 0 before creating the Checkpointer"
            )


def _is_rewritten_by_lookups(table: Table) -> bool:
    """Whether a lookup moves rows on its own rank (``max_norm``): they differ until the next gradient."""
    return any(module.max_norm is not None for module in table.modules)


def _sample(table: Table, ids: Sequence[int] | None) -> Tensor:
    """Some values of some rows, on the CPU, in double precision."""
    if ids is None:
        rows = min(table.rows, ROWS)
        ids = [number * (table.rows - 1) // max(1, rows - 1) for number in range(rows)]
    weight = table.parameter.detach()
    chosen = weight[torch.tensor(ids, dtype=torch.int64, device=weight.device)]
    return chosen.reshape(len(ids), -1)[:, :_VALUES].to("cpu", torch.float64)


def _digest(sample: Tensor) -> str:
    return hashlib.blake2b(sample.contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def _differs(ours: Tensor, theirs: Tensor) -> bool:
    """Whether most values do, by more than rounding would explain."""
    if ours.numel() == 0:
        return False
    same = torch.isclose(
        ours, theirs.to(torch.float64).reshape(ours.shape), rtol=_TOLERANCE, atol=1e-12, equal_nan=True
    )
    return bool(same.double().mean() < 0.5)
