"""Keeps the record of a job in its run, on a thread of its own: nothing waits for the store."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from queue import SimpleQueue

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.happenings import Event, Resized
from holdfast.cluster.record import PREFIX, JobRecord, Speed, page_name, term_of_page
from holdfast.errors import HoldfastError
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

logger = logging.getLogger("holdfast")

KEPT_JOBS = 16  # of which a run tells: a new one deletes what is older
_FIRST_S, _LONGEST_S = 10.0, 600.0  # between two pages, of a job that has just begun, and of a long one
_SHARE = 0.05  # of its time so far, that a job lets pass between two pages
_SPEEDS = 20  # on a page, about
_SHORTEST_S = 1.0  # between two speeds
_END_S = 10.0  # that the last page may take


class Recorder:
    """Collects events and speeds, and writes a page of them now and then: more and more seldom, and at the end.

    Args:
        store: Of the run.
        job: Its term and size; what it tells of is added.
        accounts: Where speeds come from.
        runtime: Clock.
    """

    def __init__(self, store: Store, job: JobRecord, accounts: Accounts, *, runtime: Runtime = SYSTEM) -> None:
        self._job = job
        self._accounts = accounts
        self._runtime = runtime
        self._events: list[Event] = []
        self._speeds: list[Speed] = []
        self._pages: SimpleQueue[JobRecord | None] = SimpleQueue()
        self._began_s = self._written_s = self._measured_s = runtime.monotonic_s()
        self._samples = self._rows = 0.0
        self._thread = threading.Thread(
            target=_write, args=(store, job.term, self._pages), name="holdfast-record", daemon=True
        )
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Something happened."""
        self._events.append(event)
        if isinstance(event, Resized):
            self._job = replace(self._job, workers=event.workers)

    def turn(self) -> None:
        """Measure, and write a page, if it is time to."""
        now_s = self._runtime.monotonic_s()
        between_s = min(_LONGEST_S, max(_FIRST_S, _SHARE * (now_s - self._began_s)))
        if now_s - self._measured_s >= max(_SHORTEST_S, between_s / _SPEEDS):
            self._measure(now_s)
        if now_s - self._written_s >= between_s:
            self._written_s = now_s
            self._turn_page()

    def close(self) -> None:
        """Write what is left; a store that does not answer is not waited for."""
        self._measure(self._runtime.monotonic_s())
        self._turn_page()
        self._pages.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            logger.warning("the end of this job's record is not stored yet; it may be missing in reports")

    def _measure(self, now_s: float) -> None:
        standing, took_s = self._accounts.standing, now_s - self._measured_s
        samples, rows = standing.samples, standing.rows
        if took_s > 0:
            self._speeds.append(
                Speed(
                    at_s=self._runtime.wall_s(),
                    step=self._accounts.step,
                    samples_per_s=(samples - self._samples) / took_s,
                    rows_per_s=(rows - self._rows) / took_s,
                )
            )
        self._measured_s, self._samples, self._rows = now_s, samples, rows

    def _turn_page(self) -> None:
        if self._events or self._speeds:
            self._pages.put(replace(self._job, events=tuple(self._events), speeds=tuple(self._speeds)))
            self._events, self._speeds = [], []


def _write(store: Store, term: int, pages: SimpleQueue[JobRecord | None]) -> None:
    """The thread: a page that cannot be written is given up, and its number is left out."""
    is_told = False
    number = 0
    try:
        _forget_old_jobs(store)
    except HoldfastError as error:
        logger.warning("records of old jobs are not deleted: %s", error)
    while (page := pages.get()) is not None:
        number += 1
        try:
            store.put(page_name(term, number), page.encode(), create=True)
        except HoldfastError as error:
            if not is_told:
                logger.warning("a part of this job's record is not stored: %s", error)
            is_told = True


def _forget_old_jobs(store: Store) -> None:
    found = [(term, info.name) for info in store.list(PREFIX) if (term := term_of_page(info.name)) is not None]
    kept = sorted({term for term, _ in found})[-(KEPT_JOBS - 1) :]
    store.delete([name for term, name in found if term not in kept])
