"""What a shard's first load and first marks need, compiled or loaded before."""

from __future__ import annotations

from holdfast.checkpoint.restore import native_rows
from holdfast.kernels import row_scatter
from holdfast.kernels.bit_sets.arrays import host_kernels


def warm_up() -> None:
    """For a process that waits for a dead one's place: whatever it loads now, nobody waits for then."""
    host_kernels()
    row_scatter.warm_up()
    native_rows.warm_up()
