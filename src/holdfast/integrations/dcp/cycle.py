"""How frames go round: filled by threads that compute, written by threads that wait for the store, and filled again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Protocol

from holdfast.checkpoint.read.crew import WORKERS
from holdfast.integrations.dcp.frames import Frame
from holdfast.integrations.dcp.sections import Sections

# Some disks, those of virtual machines among them, tell that they have written something when they have nothing left to
# write. So more frames are given to the system than such a disk takes at once (about six): those that it has not taken
# yet follow without waiting for a thread, and threads have until their end to fill the frames that became free.
_WRITERS = 8 + WORKERS  # of which as many as were copied first may wait for digests
_FRAMES = _WRITERS + 2
_COPIED = 4  # frames that are hashed later: what keeps the disk busy while the first ones are hashed
_FEW = 2  # free frames: the disk has enough to do for now


class Shelf(Protocol):
    """Where frames become bundles. Threads may share one."""

    def describe(self, frame: Frame) -> None:
        """Say what bundle a frame will be, once the digests of its sections are known."""
        ...

    def put(self, frame: Frame) -> None:
        """Store a frame, which is described by now or while it is being stored."""
        ...


def store_alone(sections: Sections, shelf: Shelf) -> None:
    """Store all sections in the calling thread."""
    frame = Frame(sections)
    try:
        while frame.fill():
            shelf.describe(frame)
            shelf.put(frame)
            frame.clear()
    finally:
        frame.close()


def store_all(sections: Sections, shelf: Shelf, then: Callable[[], None]) -> None:
    """Store all sections. Raises what the first failure was, when no thread is at work any more.

    Args:
        sections: Those that are to be stored.
        shelf: Where to.
        then: Called when it is known where all of them will be, while the last frames are being stored.
    """
    _Cycle(sections, shelf).run(then)


class _Cycle:
    """The frames of one call of ``store_all``, and who has them.

    The disk shall not wait until the first frames are hashed: these are only copied, and hashed when few frames are
    free, so that the disk has enough to do, or when none is left to fill.
    """

    def __init__(self, sections: Sections, shelf: Shelf) -> None:
        self._sections = sections
        self._shelf = shelf
        self._free: SimpleQueue[Frame] = SimpleQueue()
        self._unhashed: SimpleQueue[Frame] = SimpleQueue()
        self._written: list[Future[None]] = []
        self._frames = [Frame(sections) for _ in range(_FRAMES)]
        for frame in self._frames:
            self._free.put(frame)
        self._copies = Semaphore(_COPIED)

    def run(self, then: Callable[[], None]) -> None:
        """Store all sections."""
        try:
            with ThreadPoolExecutor(_WRITERS, "holdfast-dcp-write") as writers:
                with ThreadPoolExecutor(WORKERS, "holdfast-dcp-fill") as fillers:
                    filled = [fillers.submit(self._fill, writers) for _ in range(WORKERS)]
                for each in filled:
                    each.result()
                if not self._sections.are_given_up:
                    then()
                    self._close_those_that_return()
        finally:
            for frame in self._frames:
                frame.close()
        for each in self._written:
            each.result()

    def _close_those_that_return(self) -> None:
        """One after another, while others are written: it takes some time."""
        for _ in self._frames:
            self._free.get().close()

    def _fill(self, writers: ThreadPoolExecutor) -> None:
        try:
            frame = self._free.get()
            while self._copies.acquire(blocking=False) and frame.copy():
                self._unhashed.put(frame)
                self._written.append(writers.submit(self._write, frame))
                frame = self._next_free()
            while frame.fill():
                self._shelf.describe(frame)
                self._written.append(writers.submit(self._write, frame))
                frame = self._next_free()
            self._free.put(frame)
            self._hash_copied()
        except BaseException as error:
            self._sections.give_up()
            for frame in _taken(self._unhashed):
                frame.give_up(error)
            raise

    def _next_free(self) -> Frame:
        if self._free.qsize() <= _FEW:
            self._hash_copied(1)
        with suppress(Empty):
            return self._free.get_nowait()
        self._hash_copied()
        return self._free.get()

    def _hash_copied(self, most: int = _COPIED) -> None:
        for frame in islice(_taken(self._unhashed), most):
            try:
                frame.hash()
                self._shelf.describe(frame)
            except BaseException as error:
                frame.give_up(error)
                raise

    def _write(self, frame: Frame) -> None:
        try:
            self._shelf.put(frame)
        except BaseException:
            self._sections.give_up()
            raise
        finally:
            frame.clear()
            self._free.put(frame)


def _taken(frames: SimpleQueue[Frame]) -> Iterator[Frame]:
    """Those in a queue that other threads take from, too."""
    with suppress(Empty):
        while True:
            yield frames.get_nowait()
