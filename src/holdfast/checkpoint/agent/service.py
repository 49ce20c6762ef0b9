"""The agent: writes, commits and cleans up alongside the trainer.

It never imports torch. It outlives its trainer: once a snapshot is sealed, it is committed even if the trainer is
killed. Messages are handled on the main thread; the work runs on others.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.checkpoint.agent.cleanup import Cleanup
from holdfast.checkpoint.agent.grid_worker import GridWorker
from holdfast.checkpoint.agent.leftovers import Leftovers
from holdfast.checkpoint.agent.save import AgentSave
from holdfast.checkpoint.agent.threads import AgentThreads
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import annotate, raise_term
from holdfast.checkpoint.commit.lease import WRITER, HeldLease
from holdfast.checkpoint.grid.rearrange import Rearranger
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import (
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
    Ping,
    Pong,
    Raised,
    RaiseTerm,
    Resolve,
    Seal,
    StandBack,
)
from holdfast.checkpoint.wire.readiness import wait_readable
from holdfast.checkpoint.wire.state_digests import PieceDigest, digest_pieces
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder, KeyFrames
from holdfast.checkpoint.write.committer import Committer, SaveTimes
from holdfast.checkpoint.write.part_writer import PartWriter
from holdfast.errors import HoldfastError, SaveFailed, StorageError, TakenOver
from holdfast.format.catalog import Entry, Intent
from holdfast.format.manifest import Manifest
from holdfast.kernels import checksums, quantize
from holdfast.policy import Grid, Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage.retry import RetryingStore
from holdfast.types import Kind


class Agent:
    """Serves one trainer over a channel."""

    def __init__(
        self,
        channel: Channel,
        store: RetryingStore,
        buffer: FrameBuffer,
        config: Configure,
        *,
        runtime: Runtime = SYSTEM,
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
            may_come=self._may_come,
            runtime=runtime,
        )
        self._under_way: set[str] = set()  # saves that have begun and not ended
        self._cleanup = Cleanup(
            store,
            self._chain,
            term=config.term,
            grace_s=config.grace_s,
            reserve_bytes=config.reserve_bytes,
            leads=config.rank == 0,
            leftovers=self._leftovers() if config.alone else None,
            tell=self._tell,
            runtime=runtime,
        )
        self._key_frames = KeyFrames(store, in_memory=config.baseline_in_memory)
        self._threads = AgentThreads(uploads=config.uploads, on_fatal=channel.hang_up)
        if config.encodes:
            self._threads.write(_warm_up)  # compiling, on a machine that never did, takes longer than a save
        self._save: AgentSave | None = None
        self._starting = config.starting
        self._grid_worker = self._start_grid_worker(Grid.from_dict(config.grid)) if config.grid else None

    def _may_come(self, rank: int) -> bool:
        """Whether a rank's trainer is known to be alive: it may not have come to the save yet."""
        pidfd = dict(self._config.peers).get(rank)
        return pidfd is not None and not wait_readable([pidfd], 0.0)

    def _leftovers(self) -> Leftovers:
        return Leftovers(
            self._store,
            self._chain,
            self._committer,
            term=self._config.term,
            rank=self._config.rank,
            world=self._config.world,
            under_way=self._under_way.copy,
        )

    def _start_grid_worker(self, grid: Grid) -> GridWorker:
        config = self._config
        rearranger = Rearranger(
            self._store, self._chain, grid, rank=config.rank, term=config.term, runtime=self._runtime
        )

        def submit(work: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the agent ends: what is due stays so
                self._threads.finish(work)

        return GridWorker(rearranger, max_postponed=grid.max_postponed, submit=submit, tell=self._tell, tidy=self._tidy)

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
            self._finish_work()
            self._is_up()
        self._threads.raise_fatal()

    def _finish_work(self) -> None:
        """Wait for everything handed over, and keep answering pings: the trainer must see that we are alive."""
        finishing = threading.Thread(target=self._hang_up_after_work, name="holdfast-finish")
        finishing.start()
        with suppress(ChannelClosed):
            while True:
                if isinstance(message := self._channel.receive(None), Ping):
                    self._answer(message)
        finishing.join()

    def _hang_up_after_work(self) -> None:
        self._threads.close()
        self._channel.hang_up()

    def _next(self, trainer: int | None) -> Message | None:
        """The next message; None when the trainer is gone and everything it sent was handled.

        A killed trainer's forked children may hold the socket open for a while, so its process is watched too.
        """
        try:
            while (message := self._channel.receive(0.0)) is None:
                if self._save is None and self._starting is not None:
                    self._threads.write(self._is_up)  # else when the save that was sealed meanwhile has its own lease
                watched = [self._channel.fileno()] + ([trainer] if trainer is not None else [])
                ready = wait_readable(watched)
                if trainer in ready and (message := self._channel.receive(0.0)) is None:
                    return None
                if message is not None:
                    return message
            return message
        except ChannelClosed:
            return None

    def _handle(self, message: Message) -> None:
        match message:
            case StandBack():
                self._runtime.sleep(message.seconds)
            case Begin():
                self._begin(message)
            case FrameFilled():
                self._frame(message)
            case Seal() if self._save is not None:
                self._save.sealed = True
                self._threads.finish(self._finish, self._save, message)
            case Cancel() if self._save is not None:
                self._save.cancelled.set()
                if not self._save.sealed:
                    self._discard(self._save)
            case Annotate():
                self._threads.finish(self._annotate, message)
            case Resolve():
                self._threads.finish(self._resolve, message.checkpoint)
            case Ping():
                self._answer(message)
            case RaiseTerm():
                self._threads.finish(self._raise_term)
            case Arrange() if self._grid_worker is not None:
                self._threads.finish(self._grid_worker.finish)
            case _:
                pass

    def _begin(self, message: Begin) -> None:
        intent = Intent.from_json(message.intent)
        in_grid = self._grid_worker is not None and intent.kind is not Kind.PRIORITY
        encoder = ChunkEncoder(intent, message.tables, self._key_frames)
        writer = PartWriter(
            self._store, intent, self._config.rank, message.tables, message.tensors, keep_ids=in_grid, encoder=encoder
        )
        save = self._save = AgentSave(intent, writer, encoder, self._runtime.monotonic_s())
        self._under_way.add(save.identifier)
        if self._grid_worker is not None:
            self._grid_worker.save_begins(save.over)
        save.frames.append(self._threads.write(self._announce, save))

    def _announce(self, save: AgentSave) -> None:
        save.leases.enter_context(
            HeldLease(
                self._store,
                WRITER,
                self._name,
                [save.identifier],
                ttl_s=self._config.lease_s,
                rank=self._config.rank,
                runtime=self._runtime,
            )
        )
        self._is_up()
        self._committer.publish(save.intent)

    def _is_up(self) -> None:
        """Nothing that our trainer sealed while we were started is without a lease now."""
        starting, self._starting = self._starting, None
        if starting is not None:
            with suppress(StorageError):  # it expires by itself
                self._store.delete([starting])

    def _frame(self, message: FrameFilled) -> None:
        save = self._save
        if save is None:
            self._tell(Freed(frame=message.frame))
            return
        save.frames.append(self._threads.write(self._write, save, len(save.frames), message))

    def _write(self, save: AgentSave, number: int, message: FrameFilled) -> None:
        try:
            if not save.cancelled.is_set():
                save.write(number, self._buffer.frame(message.frame)[: message.used], message.chunks)
        finally:
            self._tell(Freed(frame=message.frame))

    def _finish(self, save: AgentSave, seal: Seal) -> None:
        """Commit a sealed save and report how it ended."""
        complete = False
        try:
            save.require_frames()
            complete = True  # from here on, an error of the store leaves it unknown whether the save gets committed
            manifest, part = save.writer.finish(seal.full_bytes)
            times = SaveTimes(started_s=save.started_s, stall_s=seal.stall_s)
            entry, _ = self._committer.commit(save.intent, manifest, part, save.cancelled.is_set, times)
        except Exception as error:
            self._tell(_failure(save.identifier, error, unknown=complete and isinstance(error, StorageError)))
            self._clean_up(save)
        else:
            self._committed(save, manifest, entry)
        finally:
            self._end(save)

    def _committed(self, save: AgentSave, manifest: Manifest, entry: Entry) -> None:
        is_checkpoint = entry.info.kind is not Kind.PRIORITY  # nothing stands on the others, nor differs from them
        if is_checkpoint:
            self._key_frames.committed(entry, manifest, save.encoder.held)
        self._tell(Committed(entry=entry.to_json(), state=save.writer.state_digests))
        if is_checkpoint and self._grid_worker is not None:
            self._grid_worker.committed(entry, manifest, save.writer.ids)
        self._tidy()

    def _discard(self, save: AgentSave) -> None:
        """Forget a snapshot that was never sealed; what of its objects cannot be deleted now goes later."""
        save.cancelled.set()
        self._save = None
        self._threads.finish(self._report_discarded, save)

    def _report_discarded(self, save: AgentSave) -> None:
        self._clean_up(save)
        self._tell(_failure(save.identifier, save.cancellation()))
        self._end(save)

    def _end(self, save: AgentSave) -> None:
        save.over.set()
        self._under_way.discard(save.identifier)
        save.leases.close()
        if self._grid_worker is not None:
            self._grid_worker.go_on()

    def _clean_up(self, save: AgentSave) -> None:
        save.await_frames()
        with suppress(HoldfastError):  # what stays is left for ``Leftovers``
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
            self._tell(Committed(entry=found[0].to_json(), state=self._state_of(found[0])))
        else:
            self._tell(_failure(checkpoint, SaveFailed(f"checkpoint {checkpoint} was not committed")))

    def _state_of(self, entry: Entry) -> list[PieceDigest]:
        """What another agent stored of the state shared by all ranks; nothing if that cannot be read."""
        try:
            fetcher = Fetcher(self._store)
            own = [part for part in fetcher.parts(entry) if part.rank == self._config.rank == 0]
            return _read_digests(fetcher, own[0]) if own else []
        except HoldfastError:
            return []  # the trainer counts it as changed, and saves it once more

    def _answer(self, ping: Ping) -> None:
        """Say that we are alive, and what the oldest operation is that the store has not finished."""
        oldest = self._store.oldest
        if oldest is None:
            self._tell(Pong(number=ping.number))
        else:
            awaits_s = self._runtime.monotonic_s() - oldest.since_s
            self._tell(Pong(number=ping.number, awaits=f"its store ({oldest.what})", awaits_s=awaits_s))

    def _raise_term(self) -> None:
        try:
            head = self._chain.commit(raise_term(self._config.term))
        except Exception as error:
            self._tell(Raised(term=None, problem=str(error), taken_over=isinstance(error, TakenOver)))
        else:
            self._tell(Raised(term=head.catalog.term))

    def _annotate(self, message: Annotate) -> None:
        try:
            self._chain.commit(annotate(message.checkpoint, message.metrics, term=self._config.term))
        except HoldfastError as error:
            self._tell(Notice(message=f"metrics of checkpoint {message.checkpoint} were not stored: {error}"))

    def _tidy(self) -> None:
        self._cleanup.after_commit()

    def _tell(self, message: Message) -> None:
        with suppress(ChannelClosed):  # the trainer is gone; the work goes on without it
            self._channel.send(message)


def _failure(checkpoint: str, error: Exception, *, unknown: bool = False) -> Failed:
    return Failed(checkpoint=checkpoint, error=type(error).__name__, message=str(error) or repr(error), unknown=unknown)


def _read_digests(fetcher: Fetcher, manifest: Manifest) -> list[PieceDigest]:
    """Those of the state that one writer stored."""
    digests: list[PieceDigest] = []
    for chunk in manifest.state:
        data = fetcher.chunk(manifest.bundles[chunk.place.bundle], chunk.place)
        digests += digest_pieces(memoryview(data), chunk.pieces)
    return digests


def _warm_up() -> None:
    """One after another: two threads that load parts of Numba at once find some of them half loaded."""
    quantize.warm_up()
    checksums.warm_up()  # little more, now that Numba is loaded
