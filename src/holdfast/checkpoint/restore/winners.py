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
    """The newest generation that replaces each wanted row, of those that contest others, and the ids read to know it.

    One byte per row (two above 255 generations) and eight per record of these generations: without it the order of
    reading would have to decide.
    """

    def __init__(self, contest: Batch, generations: int) -> None:
        assert contest.ids_out is not None
        self._contest = contest
        self._wanted = contest.wanted
        self.newest: NDArray[np.unsignedinteger] = np.zeros(len(self._wanted), dtype=np.min_scalar_type(generations))
        # generations come in their order, and of a row that is named twice the last number stays
        inside, places = self._places(contest.ids_out)
        self.newest[places] = np.repeat(contest.reads.generation, contest.reads.rows)[inside]

    def ids(self, read: Read) -> Ids | None:
        """The ids of a chunk's records if they were read already."""
        found = self._known.get((id(read.outline), read.at))
        return None if found is None or self._contest.ids_out is None else self._contest.ids_out[found]

    def chosen(self, ids: Ids, number: int) -> NDArray[np.bool_] | None:
        """Which of a generation's records are wanted and the newest of their rows; None for all."""
        inside, places = self._places(ids)
        if isinstance(inside, slice):
            mask: NDArray[np.bool_] = self.newest[places] <= number
        else:
            mask = inside
            mask[mask] = self.newest[places] <= number
        return None if mask.all() else mask

    def _places(self, ids: Ids) -> tuple[slice | NDArray[np.bool_], Ids]:
        """Which of these rows are wanted, and where they are among all that are."""
        if self._wanted == range(self._contest.spec.rows):
            return slice(None), ids
        inside = (ids >= self._wanted.start) & (ids < self._wanted.stop)
        return inside, ids[inside] - self._wanted.start

    @cached_property
    def _known(self) -> dict[tuple[int, int], slice]:
        """Where in the contest's ids those of each chunk are."""
        reads, starts = self._contest.reads, self._contest.starts.tolist()
        outlines = [id(outline) for outline in reads.outlines]
        keys = zip(reads.outline.tolist(), reads.at.tolist(), pairwise(starts), strict=True)
        return {(outlines[outline], at): slice(*bounds) for outline, at, bounds in keys}
