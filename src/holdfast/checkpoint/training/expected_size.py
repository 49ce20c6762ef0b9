"""How large a snapshot will be once optimizers have made their state."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.training.tables import Table
from holdfast.format.layout import row_bytes

_SLOTS_TO_COME = 2  # what optimizers of the Adam family add at their first step


def full_snapshot_bytes(tables: Sequence[Table], dense_bytes: int, world: int) -> int:
    """Bytes of a rank's share of all tables, and of everything else."""
    shares = ((table, *table.share(0, world)) for table in tables)
    rows = sum(_expected_row_bytes(table) * (stop - start) for table, start, stop in shares)
    return rows + dense_bytes * (1 + _SLOTS_TO_COME)


def widest_row_bytes(tables: Sequence[Table]) -> int:
    """Bytes of the largest row record there may be."""
    return max((row_bytes(table.spec().columns) * (1 + _SLOTS_TO_COME) for table in tables), default=0)


def _expected_row_bytes(table: Table) -> int:
    """Bytes of a row record once its optimizer has made its slots."""
    now = row_bytes(table.spec().columns)
    stateless = table.optimizer is None or bool(table.slots()) or type(table.optimizer).__name__ == "SGD"
    return now if stateless else now * (1 + _SLOTS_TO_COME)
