"""A server's part of the checkpoints: its rows as shards of tables, and on server 0 the dense part of all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.checkpoint.shards import Loaded, SavePolicies, ShardedRun, ShardWriter
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.cluster.core.messages import Copied
from holdfast.cluster.core.notes import Decide, Decided, Outcome
from holdfast.cluster.core.progress import Progress, SavedProgress
from holdfast.cluster.job import Job
from holdfast.cluster.payload import Numbers
from holdfast.cluster.save_account import SaveAccount
from holdfast.cluster.saved import (
    held_progress,
    held_state,
    load_dense,
    load_missing,
    rank_state,
    saved_progress,
)
from holdfast.cluster.server.adoption import Adoption
from holdfast.cluster.server.dense_gather import DenseGather
from holdfast.cluster.server.newest_rows import load_newest_rows
from holdfast.cluster.server.shards import dense_tables, group_name, shards_of
from holdfast.cluster.shard import Shard as ServerShard
from holdfast.errors import CheckpointNotFound, HoldfastError, TakenOver
from holdfast.events import SaveCommitted, SaveGivenUp

_BUSY = "the last save is still being written"
_ADOPTION_S = 5.0  # that a save waits for the store to say what it builds on


class SavedRows:
    """Saves and loads what a server keeps.

    Args:
        job: What the process was told.
        rows: What the server keeps.
        dense: The dense parts of all servers; of server 0.
        index: Which server this is.
        buffer: Reserved for saves, where the process was a spare.
    """

    def __init__(
        self, job: Job, rows: ServerShard, dense: DenseGather, index: int, buffer: FrameBuffer | None = None
    ) -> None:
        self._job = job
        self._rows = rows
        self._dense = dense
        self._index = index
        saving = job.saving
        self._run = ShardedRun(saving.url, options=saving.options, settings=saving.settings)
        self._shards = list(shards_of(rows))
        self._writer = ShardWriter(
            self._run,
            self._shards,
            part=index,
            parts=job.servers,
            policies=SavePolicies(
                strategy=saving.strategy,
                precision=saving.precision,
                retention=saving.retention,
                overlap=saving.overlap,
            ),
            state_bytes=dense.state_bytes if index == 0 else 0,
            settings=saving.settings,
            reserved=buffer,
        )
        self._groups = [group_name(group.group) for group in rows.groups]
        self._dense_tables = {shard.table: np.arange(shard.count) for shard in dense_tables(rows) if shard.count}
        self._saves: dict[str, int] = {}  # by checkpoint, those in progress that are to become one
        self._is_dense_changed = False
        self._is_started = False
        self._adoption: Adoption | None = None  # while it is not known what the next save builds on
        self._replaces = False
        self._went_back_to: str | None = None  # a checkpoint that may not be the newest any more
        self.priority_intent: bytes | None = None
        self.account = SaveAccount()  # on server 0

    # ---- loading ---------------------------------------------------------------------------------------------------

    def load(self, checkpoint: str | None, *, replaces: bool) -> SavedProgress | None:
        """Fill the rows from a checkpoint, or with the newest rows saved; None where nothing was ever saved."""
        self._abandon()
        try:
            loaded = self._load(checkpoint)
        except CheckpointNotFound:
            if checkpoint is not None:
                raise
            self._go_on(None, replaces=replaces)
            return None
        assert loaded.state is not None
        load_missing(self._rows, self._shards, loaded)
        load_dense(self._rows.dense, loaded.state.training)
        self._go_on(loaded, replaces=replaces)
        self._went_back_to = checkpoint
        return SavedProgress() if checkpoint is not None else self._progress_in(loaded)

    def load_rows(self, wanted: Sequence[Numbers], *, dense: bool) -> SavedProgress | None:
        """Fill some rows with what was saved last, and the dense part where wanted; None where nothing was ever saved.

        With how far workers had come when they were saved.
        """
        try:
            loaded = load_newest_rows(self._run, self._rows, wanted, dense=dense)
        except CheckpointNotFound:
            return None
        return self._progress_in(loaded)

    def adopt(self, *, replaces: bool) -> None:
        """The rows came from elsewhere: all of them count as changed since the newest checkpoint.

        What that holds is read meanwhile; saves wait for it, and fail if it cannot be read.
        """
        self._adoption, self._replaces = Adoption(self._read_newest), replaces

    def begin(self, *, replaces: bool) -> None:
        """The rows are as they begin."""
        self._abandon()
        self._go_on(None, replaces=replaces)

    def stay(self) -> None:
        """The rows are those of the last checkpoint already: what came between would only be in the way."""
        self._writer.make_way()

    def _load(self, checkpoint: str | None) -> Loaded:
        if checkpoint is not None:
            return self._run.load(self._shards, checkpoint)
        return self._run.load_newest(self._shards, state=True)

    def _progress_in(self, loaded: Loaded) -> SavedProgress:
        """How far workers had come when the rows were saved: all by the checkpoint, the newest by priority saves."""
        assert loaded.state is not None
        progress = saved_progress(loaded.state, self._job.plan, step=loaded.info.step)
        held = loaded.newest[self._index] if loaded.newest else None
        return SavedProgress({**progress, **held_progress(held)}, progress)

    def _read_newest(self) -> Loaded | None:
        """On another thread, which shares no client of the store with this one."""
        saving = self._job.saving
        run = ShardedRun(saving.url, options=saving.options, settings=saving.settings)
        try:
            return run.load_newest(self._shards, rows=False)
        except CheckpointNotFound:
            return None

    def _settle_adoption(self, *, wait_s: float = 0.0) -> None:
        """Go on from the newest checkpoint, if it is known by now."""
        if (adoption := self._adoption) is None:
            return
        if wait_s:
            adoption.wait(wait_s)
        if adoption.is_known:
            self._go_on(adoption.loaded, replaces=self._replaces)
        else:
            adoption.raise_grave()

    @property
    def _problem(self) -> str:
        """Why nothing can be saved now; empty: it can."""
        return "" if self._adoption is None else self._adoption.problem

    def _go_on(self, loaded: Loaded | None, *, replaces: bool) -> None:
        self._adoption = None
        if not self._is_started:
            self._is_started = True
            self._writer.start(self._job.saving.term, loaded, replaces=replaces)
        elif loaded is not None:
            self._writer.go_on(loaded)
        else:
            self._writer.mark_all()

    def _abandon(self) -> None:
        """Everyone goes back: what is being saved belongs to steps that will be taken again."""
        if self._is_started and not self._writer.is_idle:
            self._writer.cancel()
            self._writer.settle()
        self._saves.clear()

    # ---- saving ----------------------------------------------------------------------------------------------------

    def mark(self, group: int, rows: Numbers) -> None:
        """These rows of a group's array have changed; all count as changed once they have come back, if they had to."""
        if self._is_started:
            self._writer.mark(self._groups[group], rows)

    def mark_dense(self) -> None:
        """The dense part has changed; in which rows is known before it is saved: in all."""
        self._is_dense_changed = True

    def _mark_dense_tables(self) -> None:
        if self._is_dense_changed:
            self._is_dense_changed = False
            for table, rows in self._dense_tables.items():
                self._writer.mark(table, rows)

    def survey(self) -> bytes:
        """What there is to save. A checkpoint is coming: it holds the rows of a priority save in progress as well."""
        self._settle_adoption(wait_s=_ADOPTION_S)
        if self._problem:
            return json.dumps(None).encode()
        self._writer.make_way()
        self._mark_dense_tables()
        return json.dumps(self._writer.changed() if self._writer.counts_changes else None).encode()

    def decide(self, asked: Decide) -> Decided:
        """On server 0: what all servers are to save now."""
        if self._problem:
            return Decided(asked.save, b"", self._problem)
        if asked.priority and not self._writer.is_idle:  # nothing waits for it, so it does not wait either
            return Decided(asked.save, b"", _BUSY)
        found = [json.loads(each) for each in asked.surveys]
        changed = [each for each in found if each is not None]
        try:
            self._leave_behind()
            intent = self._writer.intend(
                asked.step, changed=changed, metrics=self.account.metrics, priority=asked.priority, force=asked.force
            )
        except TakenOver:
            raise
        except HoldfastError as error:
            return Decided(asked.save, b"", str(error))
        if intent is None:
            return Decided(asked.save, b"", "the last save failed a moment ago" if self._writer.is_idle else _BUSY)
        return Decided(asked.save, json.dumps(intent).encode(), "")

    def _leave_behind(self) -> None:
        """What was committed while everyone went back to an older checkpoint belongs to no timeline that goes on."""
        if self._went_back_to is not None:
            self._run.go_back(self._went_back_to)
            self._went_back_to = None

    def copy(self, save: int, progress: Mapping[int, Progress], intent: bytes) -> Copied:
        """Take a snapshot."""
        if self._problem:
            return Copied(save, self._problem)
        found: dict[str, Any] = json.loads(intent)
        state = rank_state(found["step"], progress.get(self._index))
        self._saves[found["checkpoint"]] = save
        training = self._dense.training(progress) if self._index == 0 else None
        return self._hand_over(save, found, state, training)

    def copy_priority(self, save: int, progress: Mapping[int, Progress]) -> Copied:
        """Copy the rows that a failure would set back furthest, with what they hold."""
        if self.priority_intent is None:
            return Copied(save, "nobody said what to save")
        if self._problem:
            return Copied(save, self._problem)
        found: dict[str, Any] = json.loads(self.priority_intent)
        self.priority_intent = None
        return self._hand_over(save, found, held_state(found["step"], progress), None)

    def call_off(self, save: int) -> None:
        """What was copied for a save counts as not saved."""
        if save in self._saves.values():
            self._writer.cancel()
        self._dense.clear()

    def call_off_priority(self) -> None:
        """A server died: its part of a priority save may never come, and the next one would wait for this one."""
        self._writer.make_way()

    def outcomes(self) -> Iterator[Outcome]:
        """What became of saves since the last call."""
        self._settle_adoption()
        if not self._is_started:
            return
        for event in self._writer.poll():
            match event:
                case SaveCommitted(info=info) if info.id in self._saves:
                    yield Outcome(self._saves.pop(info.id), info.id, "")
                case SaveGivenUp(checkpoint=checkpoint, reason=reason) if checkpoint in self._saves:
                    yield Outcome(self._saves.pop(checkpoint), checkpoint, reason)

    def close(self) -> None:
        """Let the agent write what it has, and end it."""
        self._writer.close()

    def _hand_over(self, save: int, intent: dict[str, Any], state: Any, training: Any) -> Copied:
        self._mark_dense_tables()
        pls = self.account.pls if training is not None else None
        try:
            taken = self._writer.capture(intent, state, training=training, pls=pls)
        except TakenOver:
            raise
        except HoldfastError as error:
            self._saves.pop(intent["checkpoint"], None)
            return Copied(save, str(error))
        return Copied(save, "" if taken else "its agent died")
