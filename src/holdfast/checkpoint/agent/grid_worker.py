"""The agent's work on the grid: follows commits and rearranges when idle, yielding to saves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.checkpoint.grid.cohorts import RowIds
from holdfast.checkpoint.grid.rearrange import Rearranger
from holdfast.checkpoint.wire.messages import GridNews, Message, Notice
from holdfast.errors import HoldfastError
from holdfast.format.catalog import Entry
from holdfast.format.manifest import Manifest


class GridWorker:
    """Runs one round at a time, on the thread that commits. A save in progress goes first, up to a limit.

    ``submit`` schedules work on that thread, ``tidy`` deletes what a round has freed.
    """

    def __init__(
        self,
        rearranger: Rearranger,
        *,
        max_postponed: int,
        submit: Callable[[Callable[[], None]], None],
        tell: Callable[[Message], None],
        tidy: Callable[[], None],
    ) -> None:
        self._rearranger = rearranger
        self._max_postponed = max_postponed
        self._submit = submit
        self._tell = tell
        self._tidy = tidy
        self._postponed = 0  # saves in a row that went first
        self._due = False
        self._problem = ""
        self._save_over: threading.Event | None = None

    def save_begins(self, over: threading.Event) -> None:
        """A save is in progress until ``over`` is set."""
        self._save_over = over
        if self._due:
            self._rearranger.stats.saves_beside += 1

    def committed(self, entry: Entry, manifest: Manifest, ids: RowIds) -> None:
        """Take in a commit. Whatever goes wrong here, the checkpoint is safe."""
        try:
            self._rearranger.saved(entry, manifest, ids)
        except Exception as error:
            self._give_up(error)
        self._tell(GridNews(stats=self._rearranger.stats.to_json()))

    def go_on(self) -> None:
        """A save or a round has ended: start whatever is due."""
        self._due = self._rearranger.is_due
        if self._due:
            self._submit(self._work)

    def finish(self) -> None:
        """Rearrange all that is due, saves or not, and say so."""
        while self._round():
            pass
        self._due = False
        self._tell(GridNews(stats=self._rearranger.stats.to_json(), settled=True))

    def _work(self) -> None:
        if self._save_over is not None and not self._save_over.is_set() and self._postponed < self._max_postponed:
            self._postponed += 1
            self._rearranger.stats.postponed += 1
            return  # the end of that save brings us back
        self._postponed = 0
        self._round()
        self.go_on()

    def _round(self) -> bool:
        """Whether there was something to rearrange and it went well."""
        try:
            done = self._rearranger.round()
        except Exception as error:
            self._give_up(error)
            return False
        if done:
            self._problem = ""
            self._tell(GridNews(stats=self._rearranger.stats.to_json()))
            self._tidy()
        return done

    def _give_up(self, error: Exception) -> None:
        """Stop until the next commit, and report why once. Not even an internal error may keep a drain waiting."""
        self._rearranger.forget()
        problem = str(error) if isinstance(error, HoldfastError) else repr(error)
        if problem != self._problem:
            self._problem = problem
            self._tell(Notice(message=f"rearranging increments is paused: {problem}"))
