"""Which record of a row is the newest, where several generations hold one."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.restore.batch import Batch
from holdfast.checkpoint.restore.columns import Ids


class Winners:
    """The newest generation that replaces each row, of those that contest others, and the ids read to know it.

    One byte per row of the table (two above 255 generations) and eight per record of these generations: without it the
    order of reading would have to decide.
    """

    def __init__(self, contest: Batch, generations: int) -> None:
        assert contest.ids_out is not None
        self._contest = contest
        self.newest: NDArray[np.unsignedinteger] = np.zeros(contest.spec.rows, dtype=np.min_scalar_type(generations))
        # generations come in their order, and of a row that is named twice the last number stays
        self.newest[contest.ids_out] = np.repeat(contest.reads.generation, contest.reads.rows)

    def ids(self, read: Read) -> Ids | None:
        """The ids of a chunk's records if they were read already."""
        found = self._known.get((id(read.outline), read.at))
        return None if found is None or self._contest.ids_out is None else self._contest.ids_out[found]

    def chosen(self, ids: Ids, number: int) -> NDArray[np.bool_] | None:
        """Which of a generation's records are the newest of their rows; None for all."""
        mask: NDArray[np.bool_] = self.newest[ids] <= number
        return None if mask.all() else mask

    @cached_property
    def _known(self) -> dict[tuple[int, int], slice]:
        """Where in the contest's ids those of each chunk are."""
        reads, starts = self._contest.reads, self._contest.starts.tolist()
        outlines = [id(outline) for outline in reads.outlines]
        keys = zip(reads.outline.tolist(), reads.at.tolist(), pairwise(starts), strict=True)
        return {(outlines[outline], at): slice(*bounds) for outline, at, bounds in keys}
