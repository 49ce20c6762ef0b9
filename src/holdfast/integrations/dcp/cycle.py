"""How frames go round: filled by threads that compute, written by threads that wait for the store, and filled again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from holdfast.checkpoint.read.crew import WORKERS
from holdfast.integrations.dcp.frames import Frame
from holdfast.integrations.dcp.sections import Sections

# Some disks, those of virtual machines among them, tell that they have written something when they have nothing left to
# write. So half of the frames is written at once while the other half is filled, and takes its place in one go.
_WRITERS = 4
_FRAMES = 2 * _WRITERS


def cycle(sections: Sections, put: Callable[[Frame], None]) -> None:
    """Store all sections. Raises what the first failure was, when no thread is at work any more.

    Args:
        sections: Those that are to be stored.
        put: Stores what is in a frame.
    """
    free: SimpleQueue[Frame] = SimpleQueue()
    for _ in range(_FRAMES):
        free.put(Frame(sections))
    written: list[Future[None]] = []

    def write(frame: Frame) -> None:
        try:
            put(frame)
        except BaseException:
            sections.give_up()
            raise
        finally:
            frame.clear()
            free.put(frame)

    def fill(writers: ThreadPoolExecutor) -> None:
        try:
            while (frame := free.get()).fill():
                written.append(writers.submit(write, frame))
            free.put(frame)
        except BaseException:
            sections.give_up()
            raise

    with ThreadPoolExecutor(_WRITERS, "holdfast-dcp-write") as writers:
        with ThreadPoolExecutor(WORKERS, "holdfast-dcp") as fillers:
            filled = [fillers.submit(fill, writers) for _ in range(WORKERS)]
    for each in (*filled, *written):
        each.result()
