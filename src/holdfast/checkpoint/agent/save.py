"""A save on the agent's side: one rank's part, from its first frame to its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from holdfast.checkpoint.wire.messages import FrameChunk
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder
from holdfast.checkpoint.write.part_writer import PartWriter
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent


class AgentSave:
    """Its frames' futures, and whether it may still commit. Shared by the agent's threads."""

    def __init__(self, intent: Intent, writer: PartWriter, encoder: ChunkEncoder, started_s: float) -> None:
        self.intent = intent
        self.writer = writer
        self.encoder = encoder
        self.started_s = started_s
        self.frames: list[Future[None]] = []  # the first is that of the announcement
        self.cancelled = threading.Event()
        self.sealed = False
        self.over = threading.Event()
        self.leases = ExitStack()

    @property
    def identifier(self) -> str:
        """The id of the checkpoint."""
        return self.intent.checkpoint

    def write(self, number: int, body: memoryview, chunks: Sequence[FrameChunk]) -> None:
        """Write a frame; if that fails, nothing of the save is committed."""
        try:
            self.writer.write_frame(number, body, chunks)
        except BaseException:
            self.cancelled.set()  # the frames that follow need not be written
            raise

    def require_frames(self) -> None:
        """Wait for all frames; raises the error of any frame, and SaveFailed if the save is cancelled."""
        for frame in self.frames:
            frame.result()
        if self.cancelled.is_set():
            raise self.cancellation()

    def await_frames(self) -> None:
        """Wait until no frame is being written, whatever the outcome."""
        for frame in self.frames:
            frame.exception()

    def cancellation(self) -> SaveFailed:
        """That it was cancelled, for the trainer."""
        return SaveFailed(f"checkpoint {self.identifier} was cancelled")
