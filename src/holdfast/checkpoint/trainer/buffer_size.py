"""How large the snapshot buffer is."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.wire.buffer import PAGE
from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.errors import ConfigurationError
from holdfast.format.layout import row_bytes

_SHARE = 4  # of the available memory, at most one part in so many
_MARGIN_BYTES = 2**20  # random states, the reader's state, padding
_MIN_FRAMES = 2  # one is filled while another is written
_SLOTS_TO_COME = 2  # what optimizers of the Adam family add at their first step


def frames_for(
    tables: Sequence[Table], dense_bytes: int, buffer_bytes: int | None, frame_bytes: int, *, world: int
) -> tuple[int, int]:
    """Number and size of frames for the wanted buffer, or for one full snapshot of this rank's share."""
    if frame_bytes < 16 * PAGE:
        raise ConfigurationError(f"frame_bytes={frame_bytes} is too small; pass at least {16 * PAGE}")
    wanted = buffer_bytes if buffer_bytes is not None else _full_snapshot_bytes(tables, dense_bytes, world)
    widest = max((row_bytes(table.spec().columns) * (1 + _SLOTS_TO_COME) for table in tables), default=0)
    frame = max(min(frame_bytes, wanted // _MIN_FRAMES), 16 * PAGE, 2 * widest)
    frame = -(-frame // PAGE) * PAGE
    return max(_MIN_FRAMES, -(-wanted // frame)), frame


def _full_snapshot_bytes(tables: Sequence[Table], dense_bytes: int, world: int) -> int:
    rows = sum(_expected_row_bytes(table) * table.rows for table in tables) // world
    full = rows + dense_bytes * (1 + _SLOTS_TO_COME) + _MARGIN_BYTES
    available = available_bytes()
    return full if available is None else min(full, available // _SHARE)


def _expected_row_bytes(table: Table) -> int:
    """Bytes of a row record once its optimizer has made its slots."""
    now = row_bytes(table.spec().columns)
    stateless = table.optimizer is None or bool(table.slots()) or type(table.optimizer).__name__ == "SGD"
    return now if stateless else now * (1 + _SLOTS_TO_COME)
