"""Empties device buffers into frames, a little at every step of the training loop, which never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import RoomExceeded, StagedChunk
from holdfast.checkpoint.snapshot.captured import Captured, Snapshot, copy_tables_into
from holdfast.checkpoint.snapshot.device_stage import StagedPart, StagedTable
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.staged_filler import PatientSink, StagedFiller
from holdfast.checkpoint.snapshot.staging import Staged, Staging
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.errors import SaveFailed

Announce = Callable[[], Mapping[int, Tensor]]

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
        announce: Announce | None = None,
        state_apart: bool = False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``announce`` is called before anything is handed over; it gives the rest of the state, by its numbers.

        ``state_apart`` keeps state and rows in separate frames; ``clock`` tells seconds.
        """
        self._announce = announce
        self._slices = staged.slices
        self._clock = clock
        self.rushed_s: float | None = None  # how long an optimizer's step waited for all slices to be read
        self._staging = staging
        self._sink = sink
        self._state_apart = state_apart
        self._filler = StagedFiller(sink, buffer, staging.streams)
        self._parts = deque([staged.part])  # in device buffers; not laid out in frames yet
        self._work: deque[Callable[[], None]] = deque()
        self._is_laid_out = False
        if self._slices is not None:
            self._slices.read_all = self._read_all

    def advance(self, *, wait: bool = False) -> bool:
        """Do what can be done without waiting; whether everything is handed over. ``wait``: do all of it."""
        while not self._go_on(wait=wait):
            if not wait:
                return False
        return True

    def abandon(self) -> None:
        """Give the snapshot up, and its frames back."""
        self._stop()
        self._filler.abandon()

    def wait(self) -> None:
        """Read no more, and wait until no device copies into a frame any more."""
        self._stop()
        self._filler.wait()

    def _stop(self) -> None:
        self._parts.clear()
        self._work.clear()
        if self._slices is not None:
            self._slices.close()

    def _read_all(self) -> None:
        """Rows of tables that are not read yet are about to move, and nobody knows which."""
        assert self._slices is not None
        started_s = self._clock()
        while not self._slices.are_read:
            self._go_on(wait=True)
        self.rushed_s = self._clock() - started_s

    def _go_on(self, *, wait: bool) -> bool:
        """One round; whether everything is handed over."""
        if self._announce is not None:
            announce, self._announce = self._announce, None
            state = {**self._parts[0].state, **announce()}
            self._parts[0] = replace(self._parts[0], state=dict(sorted(state.items())))  # pieces are read in this order
        if self._slices is not None:
            self._parts += self._slices.take(wait=wait)
        self._lay_out(wait=wait)
        self._filler.submit()
        self._fill(wait=wait)
        self._filler.submit(wait=wait)
        if self._work and not self._sink.free_frames and not self._filler.is_copying:
            self._sink.release()
        return self._is_laid_out and not self._work and not self._filler.is_copying

    def _lay_out(self, *, wait: bool) -> None:
        """List what has to be copied of the parts of which it is known how many rows there are; ``wait``: of all."""
        while self._parts and (wait or self._parts[0].is_tallied()):
            part = self._parts.popleft()
            part.await_tally()
            self._list(part)
        if not (self._is_laid_out or self._parts) and (self._slices is None or self._slices.are_read):
            self._is_laid_out = True
            self._work.append(self._filler.flush)

    def _list(self, part: StagedPart) -> None:
        filler = self._filler
        for number, raw in part.state.items():
            self._work.append(lambda number=number, raw=raw: filler.add_state(number, raw))  # type: ignore[misc]
        if part.state and self._state_apart:
            self._work.append(filler.end_frame)
        for table in part.tables:
            for chunk in self._closed(table):
                self._work.append(lambda table=table, chunk=chunk: filler.add_chunk(table, chunk))  # type: ignore[misc]
        self._work.append(part.left)

    def _closed(self, table: StagedTable) -> list[StagedChunk]:
        try:
            return table.close()
        except RoomExceeded as error:
            if error.escapes:
                self._staging.make_room(table.index, error.escapes)
            else:
                self._staging.distrust(table.index)
            raise SaveFailed(f"{error}: the device buffer had no room for them; the next save has more") from error

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
        """What it has taken of the device buffers."""
        return self.staged.size_bytes

    @property
    def is_sliced(self) -> bool:
        """Whether some of it is read later."""
        return self.staged.slices is not None

    @property
    def can_wait(self) -> bool:
        """Whether training could change nothing of it any more."""
        return not self.staged.rest

    def copy_rest(self, filler: FrameFiller) -> None:
        """Copy tables that are not on a device; training waits for that."""
        copy_tables_into(filler, self.staged.rest)

    def drain(
        self,
        sink: PatientSink,
        buffer: FrameBuffer,
        *,
        complete: Callable[[], Captured],
        state_apart: bool,
        clock: Callable[[], float],
    ) -> Draining:
        """What empties the device buffers; ``complete`` announces the snapshot, and gives all of it."""
        announce = partial(self._rest, complete)
        return Draining(
            self.staged, self.staging, sink, buffer, announce=announce, state_apart=state_apart, clock=clock
        )

    def _rest(self, complete: Callable[[], Captured]) -> dict[int, Tensor]:
        staged, host = self.staged.part.state, self.staged.host
        tensors = {number: tensor for number, tensor in enumerate(complete().tensors) if number not in staged}
        return {number: bytes_of(host.get(number, tensor)) for number, tensor in tensors.items()}


def staged_snapshot(staging: Staging, captured: Snapshot, *, in_slices: bool) -> StagedSnapshot | None:
    """Take a snapshot on its devices, maybe in slices; None if their buffers are too small."""
    staged = staging.stage(captured, in_slices=in_slices)
    return None if staged is None else StagedSnapshot(staged, staging)
