"""What saves hold: the rows that tracker and chooser name, and what becomes of their accounts when a save ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.snapshot.capture import Capture, Captured
from holdfast.checkpoint.snapshot.changed import ChangedShares
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.news import SharedNews
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent
from holdfast.format.state import JobState, RankState
from holdfast.types import Kind, Stored


class Contents:
    """The tracker's marks belong to checkpoints alone; a chooser, where there is one, keeps account of every save.

    A save is ``begin``, then ``checkpoint`` or ``rows``, then ``committed`` or ``failed``.
    """

    def __init__(
        self, capture: Capture, tracker: Tracker, chooser: RowChooser | None, shared: SharedNews | None
    ) -> None:
        self._capture = capture
        self._tracker = tracker
        self._chooser = chooser
        self._shared = shared  # of the rank that saves what all ranks share

    def start(self, *, restored: bool) -> None:
        """Saving goes on from here; ``restored``: from a checkpoint, whose rows and state these are."""
        if self._chooser is not None:
            self._chooser.start()
        if self._shared is not None and restored:
            self._shared.restored()

    def has_news(self) -> bool:
        """Whether something here differs from the last checkpoint, whatever changed it; none may be under way."""
        return self._tracker.has_news() or (self._shared is not None and self._shared.exist())

    def warm_up(self, stored: Mapping[str, Stored]) -> None:
        """Be ready for checkpoints whose tables are stored like this, and exactly if they are not named."""
        self._capture.warm_up(stored)

    def require_same_rows(self, agreement: Agreement, *, changed: bool) -> None:
        """Raise ConfigurationError if the ranks hold different tables under one name, by rows that ``changed``."""
        self._capture.require_same_rows(agreement, changed=changed)

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
        captured = self._capture.take(intent, rank, job)
        if self._shared is not None:
            self._shared.snapshot(captured)
        return captured

    def rows(self, step: int) -> Captured:
        """A priority save's."""
        if self._chooser is None:
            raise SaveFailed("there is no policy that says which rows to save first")
        chosen = self._chooser.choose()
        self._chooser.begin(chosen)
        return self._capture.take_rows(chosen, step)

    def committed(self, kind: Kind, state: Sequence[PieceDigest]) -> None:
        """The snapshot is committed, and with it a state of these digests."""
        if self._chooser is not None:
            self._chooser.committed()
        if kind is Kind.PRIORITY:
            return
        self._tracker.committed(full=kind is Kind.FULL)
        if self._shared is not None:
            self._shared.committed(state)

    def failed(self, kind: Kind) -> None:
        """It is not: its rows stay marked and go into the next one."""
        if self._chooser is not None:
            self._chooser.failed()
        if kind is not Kind.PRIORITY:
            self._tracker.failed()
