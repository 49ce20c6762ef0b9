"""Reads of one table that belong together, and what becomes of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.columns import ColumnWriter, Ids
from holdfast.checkpoint.reads import Numbers, Reads
from holdfast.types import TableSpec


class Batch(NamedTuple):
    """Reads of one table and where their records go; of contested ones those that no later generation replaces.

    ``groups`` are worked on one after another, lowest number first.
    """

    spec: TableSpec
    reads: Reads
    groups: Numbers  # of each read
    writers: Mapping[str, ColumnWriter]
    newest: NDArray[np.unsignedinteger] | None = None
    ids_out: Ids | None = None  # where the row ids of all reads shall go, too, one read's behind another's
    ids_alone: bool = False  # nothing is written, and all that is read is kept for later

    @property
    def starts(self) -> Numbers:
        """Where in ``ids_out`` each read's ids begin; one number more says where the last one's end."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.reads.rows)])
