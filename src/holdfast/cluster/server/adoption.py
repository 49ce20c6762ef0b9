"""What the newest checkpoint holds, found out while a server goes on whose rows came from parities."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from holdfast.checkpoint.shards import Loaded
from holdfast.errors import HoldfastError, TakenOver


class Adoption:
    """Reads the run on a thread of its own: a store that does not answer keeps no pull waiting.

    Args:
        read: Reads it; None where nothing was ever saved.
    """

    def __init__(self, read: Callable[[], Loaded | None]) -> None:
        self._read = read
        self._found = self._begun()

    @property
    def is_known(self) -> bool:
        """Whether it was found out."""
        return self._found.done() and self._found.exception() is None

    @property
    def loaded(self) -> Loaded | None:
        """What was found, once it is known."""
        return self._found.result()

    @property
    def problem(self) -> str:
        """Why it is not known, for whoever wants to save now."""
        if not self._found.done():
            return "the store has not yet said what the newest checkpoint holds"
        return f"what the newest checkpoint holds could not be read: {self._found.exception()}"

    def wait(self, timeout_s: float) -> None:
        """For an answer of the store, for so long at most. Where the last one was an error, it is asked again."""
        if self._found.done() and self._found.exception() is not None:
            self._found = self._begun()
        with suppress(TimeoutError):
            self._found.exception(timeout_s)
        self.raise_grave()

    def raise_grave(self) -> None:
        """Raise what asking again does not mend: another job owns the run, or the fault is ours."""
        error = self._found.exception() if self._found.done() else None
        if error is not None and (isinstance(error, TakenOver) or not isinstance(error, HoldfastError)):
            raise error

    def _begun(self) -> Future[Loaded | None]:
        found: Future[Loaded | None] = Future()
        threading.Thread(target=_settle, args=(found, self._read), name="holdfast-adoption", daemon=True).start()
        return found


def _settle(found: Future[Loaded | None], read: Callable[[], Loaded | None]) -> None:
    try:
        found.set_result(read())
    except BaseException as error:
        found.set_exception(error)
