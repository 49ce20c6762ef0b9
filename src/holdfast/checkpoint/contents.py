"""What saves hold: the rows that tracker and chooser name, and what becomes of their accounts when a save ends."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.capture import Capture, Captured
from holdfast.checkpoint.changed import ChangedShares
from holdfast.checkpoint.priority import RowChooser
from holdfast.checkpoint.tracker import Tracker
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent
from holdfast.format.state import JobState, RankState
from holdfast.types import Kind, Stored


class Contents:
    """The tracker's marks belong to checkpoints alone; a chooser, where there is one, keeps account of every save.

    A save is ``begin``, then ``checkpoint`` or ``rows``, then ``committed`` or ``failed``.
    """

    def __init__(self, capture: Capture, tracker: Tracker, chooser: RowChooser | None) -> None:
        self._capture = capture
        self._tracker = tracker
        self._chooser = chooser

    def start(self) -> None:
        """The tables are those of the checkpoint that saving goes on from."""
        if self._chooser is not None:
            self._chooser.start()

    def warm_up(self, stored: Mapping[str, Stored]) -> None:
        """Be ready for checkpoints whose tables are stored like this, and exactly if they are not named."""
        self._capture.warm_up(stored)

    def distrust(self) -> None:
        """Rows that were forgotten here may be missing in the parent: the next checkpoint holds all of them."""
        self._tracker.mark_all()

    def changed(self, stored: Mapping[str, Stored]) -> ChangedShares:
        """How much changed of the tables, each to be stored like this, and exactly if it is not named."""
        return self._capture.changed(stored)

    def begin(self, kind: Kind) -> None:
        """Take a snapshot now. Raises ModelMismatch if a table is not the one that training started with."""
        if kind is Kind.PRIORITY:
            self._tracker.check()  # and no more: the marks are those of the next checkpoint
        else:
            self._tracker.begin(full=kind is Kind.FULL)

    def checkpoint(self, intent: Intent, rank: RankState, job: JobState | None) -> Captured:
        """A checkpoint's share of this rank; ``job`` is that of the first rank alone."""
        if self._chooser is not None:
            self._chooser.begin(None)
        return self._capture.take(intent, rank, job)

    def rows(self, step: int) -> Captured:
        """A priority save's."""
        if self._chooser is None:
            raise SaveFailed("there is no policy that says which rows to save first")
        chosen = self._chooser.choose()
        self._chooser.begin(chosen)
        return self._capture.take_rows(chosen, step)

    def committed(self, kind: Kind) -> None:
        """The snapshot is committed."""
        if self._chooser is not None:
            self._chooser.committed()
        if kind is not Kind.PRIORITY:
            self._tracker.committed(full=kind is Kind.FULL)

    def failed(self, kind: Kind) -> None:
        """It is not: its rows stay marked and go into the next one."""
        if self._chooser is not None:
            self._chooser.failed()
        if kind is not Kind.PRIORITY:
            self._tracker.failed()
