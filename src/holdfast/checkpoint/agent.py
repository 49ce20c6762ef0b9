"""The agent: a process beside the trainer that writes, commits and cleans up (run as a module by AgentClient).

It never imports torch. It outlives its trainer: once a snapshot is sealed, it is committed even if the trainer is
killed. Messages are handled on the main thread; frames are written by a small pool; one more thread finishes saves.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec

from holdfast.checkpoint.arranging import Arranging
from holdfast.checkpoint.buffer import FrameBuffer
from holdfast.checkpoint.chain import Chain
from holdfast.checkpoint.changes import annotate
from holdfast.checkpoint.channel import (
    Annotate,
    Arrange,
    Begin,
    Cancel,
    Channel,
    ChannelClosed,
    Close,
    Committed,
    Configure,
    Failed,
    FrameFilled,
    Freed,
    Message,
    Notice,
    Resolve,
    Seal,
)
from holdfast.checkpoint.collect import collect_dropped, collect_orphans
from holdfast.checkpoint.committer import Committer, SaveTimes
from holdfast.checkpoint.encoding import ChunkEncoder, KeyFrames
from holdfast.checkpoint.grid.rearrange import Rearranger
from holdfast.checkpoint.lease import HeldLease
from holdfast.checkpoint.writer import PartWriter
from holdfast.errors import HoldfastError, SaveFailed, StorageError
from holdfast.format.catalog import Entry, Intent
from holdfast.policy import Grid, Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store, open_store
from holdfast.storage.retry import RetryingStore
from holdfast.types import Kind

P = ParamSpec("P")


_ORPHANS_EVERY_S = 600.0
_ORPHANS_EVERY_COMMITS = 64  # old catalogs make looking for the newest one slow


class _Save:
    """A save under way: its frames' futures, and whether it may still commit."""

    def __init__(self, intent: Intent, writer: PartWriter, encoder: ChunkEncoder, started_s: float) -> None:
        self.intent = intent
        self.writer = writer
        self.encoder = encoder
        self.started_s = started_s
        self.frames: list[Future[None]] = []
        self.cancelled = threading.Event()
        self.sealed = False
        self.over = threading.Event()
        self.leases = ExitStack()

    @property
    def identifier(self) -> str:
        return self.intent.checkpoint


class Agent:
    """Serves one trainer over a channel."""

    def __init__(
        self, channel: Channel, store: Store, buffer: FrameBuffer, config: Configure, *, runtime: Runtime = SYSTEM
    ) -> None:
        self._channel = channel
        self._store = store
        self._buffer = buffer
        self._config = config
        self._runtime = runtime
        self._name = f"{socket.gethostname()}:{os.getpid()} rank {config.rank}"
        self._chain = Chain(store, writer=self._name, runtime=runtime)
        self._committer = Committer(
            store,
            self._chain,
            rank=config.rank,
            retention=Retention.from_dict(config.retention),
            part_timeout_s=config.part_timeout_s,
            runtime=runtime,
        )
        self._key_frames = KeyFrames(store, in_memory=config.baseline_in_memory)
        self._frames = ThreadPoolExecutor(config.uploads, thread_name_prefix="holdfast-write")
        # Owns the chain: one save at a time. With a single upload everything happens in turn, on one thread.
        alone = config.uploads == 1
        self._finisher = self._frames if alone else ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._fatal: BaseException | None = None
        self._save: _Save | None = None
        self._arranging = self._start_arranging(Grid.from_dict(config.grid)) if config.grid else None
        self._orphans_due_s = float("-inf")
        self._commits = 0

    def _start_arranging(self, grid: Grid) -> Arranging:
        config = self._config
        rearranger = Rearranger(
            self._store, self._chain, grid, rank=config.rank, term=config.term, runtime=self._runtime
        )

        def submit(work: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the agent ends: what is due stays so
                self._submit(self._finisher, work)

        return Arranging(
            rearranger, max_postponed=grid.max_postponed, submit=submit, tell=self._tell, tidy=self._collect
        )

    def run(self, trainer: int | None = None) -> None:
        """Serve until the trainer closes the channel or is gone; ``trainer`` is a pidfd of it."""
        try:
            while (message := self._next(trainer)) is not None:
                if isinstance(message, Close):
                    break
                self._handle(message)
        finally:
            if self._save is not None and not self._save.sealed:
                self._discard(self._save)
            self._frames.shutdown(wait=True)
            self._finisher.shutdown(wait=True)
        if self._fatal is not None:
            raise self._fatal

    def _submit(
        self, pool: ThreadPoolExecutor, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Future[None]:
        return pool.submit(self._work, partial(act, *args, **kwargs))

    def _work(self, act: Callable[[], None]) -> None:
        """Do a piece of work on a worker's thread; what is no Exception ends the whole agent, not that thread alone."""
        try:
            act()
        except Exception:
            raise
        except BaseException as error:
            self._fatal = self._fatal or error
            self._channel.hang_up()
            raise

    def _next(self, trainer: int | None) -> Message | None:
        """The next message; None when the trainer is gone and everything it sent was handled.

        A killed trainer's forked children may hold the socket open for a while, so its process is watched too.
        """
        try:
            while (message := self._channel.receive(0.0)) is None:
                watched = [self._channel.fileno()] + ([trainer] if trainer is not None else [])
                ready = select.select(watched, [], [])[0]
                if trainer in ready and (message := self._channel.receive(0.0)) is None:
                    return None
                if message is not None:
                    return message
            return message
        except ChannelClosed:
            return None

    def _handle(self, message: Message) -> None:
        match message:
            case Begin():
                self._begin(message)
            case FrameFilled():
                self._frame(message)
            case Seal() if self._save is not None:
                self._save.sealed = True
                self._submit(self._finisher, self._finish, self._save, message)
            case Cancel() if self._save is not None:
                self._save.cancelled.set()
                if not self._save.sealed:
                    self._discard(self._save)
            case Annotate():
                self._submit(self._finisher, self._annotate, message)
            case Resolve():
                self._submit(self._finisher, self._resolve, message.checkpoint)
            case Arrange() if self._arranging is not None:
                self._submit(self._finisher, self._arranging.finish)
            case _:
                pass

    def _begin(self, message: Begin) -> None:
        intent = Intent.from_json(message.intent)
        in_grid = self._arranging is not None and intent.kind is not Kind.PRIORITY
        encoder = ChunkEncoder(intent, message.tables, self._key_frames)
        writer = PartWriter(
            self._store, intent, self._config.rank, message.tables, message.tensors, keep_ids=in_grid, encoder=encoder
        )
        save = self._save = _Save(intent, writer, encoder, self._runtime.monotonic_s())
        if self._arranging is not None:
            self._arranging.save_begins(save.over)
        save.frames.append(self._submit(self._frames, self._announce, save))

    def _announce(self, save: _Save) -> None:
        save.leases.enter_context(
            HeldLease(
                self._store,
                "writer",
                self._name,
                [save.identifier],
                ttl_s=self._config.lease_s,
                runtime=self._runtime,
            )
        )
        self._committer.publish(save.intent)

    def _frame(self, message: FrameFilled) -> None:
        save = self._save
        if save is None:
            self._tell(Freed(frame=message.frame))
            return
        save.frames.append(self._submit(self._frames, self._write, save, len(save.frames), message))

    def _write(self, save: _Save, number: int, message: FrameFilled) -> None:
        try:
            if not save.cancelled.is_set():
                body = self._buffer.frame(message.frame)[: message.used]
                save.writer.write_frame(number, body, message.chunks)
        except BaseException:
            save.cancelled.set()  # the frames that follow need not be written
            raise
        finally:
            self._tell(Freed(frame=message.frame))

    def _finish(self, save: _Save, seal: Seal) -> None:
        """Commit a sealed save and report how it ended."""
        complete = False
        try:
            for frame in save.frames:
                frame.result()
            if save.cancelled.is_set():
                raise SaveFailed(f"checkpoint {save.identifier} was cancelled")
            complete = True  # from here on, an error of the store leaves it unknown whether the save gets committed
            manifest, part = save.writer.finish(seal.full_bytes)
            times = SaveTimes(started_s=save.started_s, stall_s=seal.stall_s)
            entry, head = self._committer.commit(save.intent, manifest, part, save.cancelled.is_set, times)
        except Exception as error:
            self._tell(_failure(save.identifier, error, unknown=complete and isinstance(error, StorageError)))
            self._clean_up(save)
        else:
            seconds = self._runtime.monotonic_s() - save.started_s
            is_checkpoint = entry.info.kind is not Kind.PRIORITY  # nothing stands on the others, nor differs from them
            if is_checkpoint:
                self._key_frames.committed(entry, manifest, save.encoder.held)
            self._tell(_commitment(entry, [e.info.id for e in head.entries], seconds))
            if is_checkpoint and self._arranging is not None:
                self._arranging.committed(entry, manifest, save.writer.ids)
            self._collect()
        finally:
            self._end(save)

    def _discard(self, save: _Save) -> None:
        """Forget a snapshot that was never sealed; its objects stay as orphans until a later term collects them."""
        save.cancelled.set()
        self._save = None
        self._submit(self._finisher, self._report_discarded, save)

    def _report_discarded(self, save: _Save) -> None:
        self._clean_up(save)
        self._tell(_failure(save.identifier, SaveFailed(f"checkpoint {save.identifier} was cancelled")))
        self._end(save)

    def _end(self, save: _Save) -> None:
        save.over.set()
        save.leases.close()
        if self._arranging is not None:
            self._arranging.go_on()

    def _clean_up(self, save: _Save) -> None:
        for frame in save.frames:
            frame.exception()  # none may still be writing
        with suppress(HoldfastError):  # what stays is an orphan, which a later term collects
            if save.intent.world > 1:
                self._committer.call_off(save.identifier)  # the others need not wait for our part
            save.writer.discard()

    def _resolve(self, checkpoint: str) -> None:
        try:
            found = self._committer.resolve(checkpoint)
        except Exception as error:
            self._tell(_failure(checkpoint, error, unknown=True))
            return
        if found:
            self._tell(_commitment(found[0], [e.info.id for e in found[1].entries], 0.0))
        else:
            self._tell(_failure(checkpoint, SaveFailed(f"checkpoint {checkpoint} was not committed")))

    def _annotate(self, message: Annotate) -> None:
        try:
            self._chain.commit(annotate(message.checkpoint, message.metrics, term=self._config.term))
        except HoldfastError as error:
            self._tell(Notice(message=f"metrics of checkpoint {message.checkpoint} were not stored: {error}"))

    def _collect(self) -> None:
        """Delete what is due. A failure costs space, not safety, and the next commit tries again."""
        if self._config.rank != 0:
            return
        settings = {"term": self._config.term, "grace_s": self._config.grace_s}
        try:
            collect_dropped(self._store, self._chain, **settings)  # type: ignore[arg-type]
            self._commits += 1
            if self._runtime.monotonic_s() >= self._orphans_due_s or self._commits % _ORPHANS_EVERY_COMMITS == 0:
                self._orphans_due_s = self._runtime.monotonic_s() + max(self._config.grace_s, _ORPHANS_EVERY_S)
                collect_orphans(self._store, self._chain, **settings)  # type: ignore[arg-type]
        except HoldfastError as error:
            self._tell(Notice(message=f"old objects could not be deleted yet: {error}"))

    def _tell(self, message: Message) -> None:
        with suppress(ChannelClosed):  # the trainer is gone; the work goes on without it
            self._channel.send(message)


def _failure(checkpoint: str, error: Exception, *, unknown: bool = False) -> Failed:
    return Failed(checkpoint=checkpoint, error=type(error).__name__, message=str(error) or repr(error), unknown=unknown)


def _commitment(entry: Entry, kept: list[str], seconds: float) -> Committed:
    return Committed(entry=entry.to_json(), kept=kept, seconds=seconds)


def _step_back(niceness: int) -> None:
    """Let the trainer go first."""
    priority = os.nice(niceness)
    # Linux may share the CPU by sessions (autogroup): then niceness counts within a session, and ours is our own.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(priority))


def main(arguments: list[str]) -> None:
    """``socket-fd memory-fd frames frame-bytes trainer-pid``."""
    socket_fd, memory_fd, frames, frame_bytes, trainer_pid = map(int, arguments)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the trainer; the agent ends when its work is done
    channel = Channel(socket.socket(fileno=socket_fd))
    try:
        trainer: int | None = os.pidfd_open(trainer_pid)
    except OSError:
        trainer = None
    config = channel.receive(None)
    if not isinstance(config, Configure):
        raise SystemExit("holdfast agent: the trainer sent no configuration")
    _step_back(config.niceness)
    store = RetryingStore(open_store(config.url, options=config.options), total_s=config.retry_s)
    buffer = FrameBuffer(memory_fd, frames=frames, frame_bytes=frame_bytes)
    Agent(channel, store, buffer, config).run(trainer)


if __name__ == "__main__":
    main(sys.argv[1:])
