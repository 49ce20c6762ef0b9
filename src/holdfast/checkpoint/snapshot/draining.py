"""Empties device buffers into frames, a little at every step of the training loop, which never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.snapshot.bound_layout import RoomExceeded
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.staged_filler import PatientSink, StagedFiller
from holdfast.checkpoint.snapshot.staging import Staged, Staging
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.errors import SaveFailed

_FRAMES_AT_A_TIME = 16  # queued for the side stream at a time: half a gigabyte, and below a millisecond of the loop


class Draining:
    """One staged snapshot on its way to the agent. For the training thread."""

    def __init__(
        self,
        staged: Staged,
        staging: Staging,
        sink: PatientSink,
        buffer: FrameBuffer,
        *,
        state_apart: bool = False,
    ) -> None:
        """``state_apart`` keeps state and rows in separate frames."""
        self._staged = staged
        self._staging = staging
        self._sink = sink
        self._state_apart = state_apart
        self._filler = StagedFiller(sink, buffer, staging.streams)
        self._laid_out = False
        self._work: deque[Callable[[], None]] = deque()

    def advance(self, *, wait: bool = False) -> bool:
        """Do what can be done without waiting; whether everything is handed over. ``wait``: do all of it."""
        if not self._laid_out:
            if wait:
                self._staged.await_tally()
            elif not self._staged.is_tallied():
                return False
            self._lay_out()
        self._filler.submit()
        self._fill(wait=wait)
        self._filler.submit(wait=wait)
        if self._work and not self._sink.free_frames and not self._filler.is_copying:
            self._sink.release()
        return not self._work and not self._filler.is_copying

    def abandon(self) -> None:
        """Give the snapshot up, and its frames back."""
        self._work.clear()
        self._filler.abandon()

    def wait(self) -> None:
        """Until no device copies into a frame any more."""
        self._filler.wait()

    def _lay_out(self) -> None:
        """It is known how many rows there are: list what has to be copied."""
        self._laid_out = True
        filler = self._filler
        for number, raw in self._staged.state.items():
            self._work.append(lambda number=number, raw=raw: filler.add_state(number, raw))  # type: ignore[misc]
        if self._state_apart:
            self._work.append(filler.end_frame)
        for table in self._staged.tables:
            try:
                chunks = table.close()
            except RoomExceeded as error:
                if error.escapes:
                    self._staging.make_room(table.index, error.escapes)
                else:
                    self._staging.distrust(table.index)
                raise SaveFailed(f"{error}: the device buffer had no room for them; the next save has more") from error
            for chunk in chunks:
                self._work.append(lambda table=table, chunk=chunk: filler.add_chunk(table, chunk))  # type: ignore[misc]
        self._work.append(filler.flush)

    def _fill(self, *, wait: bool) -> None:
        """Queue copies as long as there are frames for them, some frames' worth at a time."""
        least = 0 if wait else max(0, self._sink.free_frames - _FRAMES_AT_A_TIME)
        while self._work and (wait or self._sink.free_frames > least):
            self._work.popleft()()


@dataclass(frozen=True, slots=True, eq=False)
class StagedSnapshot:
    """A staged snapshot, and where it was staged."""

    staged: Staged
    staging: Staging

    @property
    def size_bytes(self) -> int:
        """What it takes of the device buffers."""
        return self.staged.size_bytes

    def copy_rest(self, filler: FrameFiller, *, state_apart: bool) -> None:
        """Copy what is not on a device; training waits for that."""
        self.staged.rest.copy_into(filler, state_apart=state_apart, without_state=self.staged.state)

    def drain(self, sink: PatientSink, buffer: FrameBuffer, *, state_apart: bool) -> Draining:
        """What empties the device buffers."""
        return Draining(self.staged, self.staging, sink, buffer, state_apart=state_apart)


def staged_snapshot(staging: Staging, captured: Captured) -> StagedSnapshot | None:
    """Take a snapshot on its devices; None if their buffers are too small."""
    staged = staging.stage(captured)
    return None if staged is None else StagedSnapshot(staged, staging)
