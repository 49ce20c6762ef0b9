"""The tiny run that the pages of docs/spec take their examples from: fixed tokens, fixed times, so fixed bytes."""

from __future__ import annotations

from functools import cache
from itertools import count

import torch

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import go_back, take_over
from holdfast.checkpoint.commit.lease import PREFIX, Lease
from holdfast.checkpoint.wire.buffer import PAGE
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import Committed, Died, LostSamples, Replaced
from holdfast.cluster.record import JobRecord, Speed, page_name
from holdfast.format.catalog import Entry, Intent, checkpoint_id, history_name
from holdfast.format.history import Delta, encode_page
from holdfast.format.state import JobState, RankState, SavedState, SharedState
from holdfast.policy import KeepLast
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore, Store
from holdfast.types import Kind
from tests.independent.writing import Tables, save

START_S = 1767225600.0  # 2026-01-01, midnight, UTC


class _World:
    """Tokens that count and a clock that moves when it is told to."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.now_s = START_S
        self.runtime = Runtime(wall_s=lambda: self.now_s, token=self.token)

    def token(self) -> str:
        return f"{next(self._numbers):08x}"


class SampleRun:
    """Create; full checkpoint A; delta B on it; take over; go back to A; full checkpoint C, which lets A and B go."""

    def __init__(self) -> None:
        self._world = _World()
        self._store = MemoryStore("sample", self._world.runtime)
        self._chain = Chain(self._store, writer="trainer", runtime=self._world.runtime)
        self._chain.commit(take_over())
        self.full = self._save(1, Kind.FULL)
        self.delta = self._save(2, Kind.INCREMENTAL, after=self.full, touched=[0, 2])
        self._chain.commit(take_over())
        self._chain.commit(go_back(self.full, term=2, store_s=self._chain.store_s))
        self.last = self._save(2, Kind.FULL, after=self.full, term=2)
        entry = self._chain.head().entries[0]  # type: ignore[union-attr]
        self._add_loose_objects(entry)

    @property
    def objects(self) -> dict[str, bytes]:
        """Every object by name."""
        return {info.name: bytes(self._store.get(info.name)) for info in self._store.list()}

    @property
    def store(self) -> Store:
        """Where they are."""
        return self._store

    @staticmethod
    def tables(step: int) -> Tables:
        """Three rows of two weights and one optimizer slot, after ``step`` steps."""
        weight = torch.tensor([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]])
        return {"emb": {"weight": weight * step, "sum": torch.tensor([0.25, 0.0, 0.75]) * step}}

    @staticmethod
    def state(step: int) -> object:
        """What is not a table."""
        training = {"model": {"bias": torch.tensor([0.125])}, "modules": {}, "optimizers": [], "extra": {}}
        shared = SharedState(job=JobState(restores=step - 1), training=training)
        return SavedState(rank=RankState(step=step), shared=shared).to_tree()

    def _save(
        self, step: int, kind: Kind, *, after: str | None = None, term: int = 1, touched: list[int] | None = None
    ) -> str:
        self._world.now_s += 60.0
        intent = Intent(
            checkpoint=checkpoint_id(step, term, self._world.token()),
            step=step,
            term=term,
            kind=kind,
            parent=after,
            base=None if kind is Kind.FULL else after,
            world=1,
            created_s=self._world.now_s,
            overlap="skip",
            restores=step - 1,
            metrics={"auc": 0.75, "loss": float("inf")} if step == 1 else {},
        )
        entry = save(
            self._store,
            self._chain,
            intent,
            self.tables(step),
            states=[self.state(step)],
            touched=None if touched is None else {"emb": torch.tensor(touched)},
            frame_bytes=2 * PAGE,  # so that all of a checkpoint is in one bundle
            retention=KeepLast(2) if term == 1 else KeepLast(1),
            runtime=self._world.runtime,
        )
        return entry.info.id

    def _add_loose_objects(self, entry: Entry) -> None:
        """A reader's lease, a page of a job, and a history page of a writer that lost the race for its catalog."""
        lease = Lease(kind="reader", holder="host:42", checkpoints=(self.last,), ttl_s=15.0)
        self._store.put(f"{PREFIX}reader-{self._world.token()}{self._world.token()}", lease.encode())
        self._store.put(page_name(2, 1), _page(self.last).encode())
        self._store.put(history_name(2, self._world.token()), encode_page(Delta(entries=(entry,))))


def _page(checkpoint: str) -> JobRecord:
    """Of a job in which a server died."""
    return JobRecord(
        term=2,
        servers=3,
        workers=2,
        synchronous=False,
        events=(
            Committed(save=1, checkpoint=checkpoint, step=2, at_s=START_S + 180),
            Died(member=Member(Role.SERVER, 1, 1), how="killed by SIGKILL", at_s=START_S + 181),
            Replaced(member=Member(Role.SERVER, 1, 2), by_spare=True, at_s=START_S + 181.5, took_s=0.5),
            LostSamples(member=Member(Role.SERVER, 1, 2), steps=3, pls=0.01, at_s=START_S + 182.5),
        ),
        speeds=(Speed(at_s=START_S + 180, step=2, samples_per_s=512.0, rows_per_s=2048.0),),
    )


@cache
def sample_run() -> SampleRun:
    """The run, built once."""
    return SampleRun()
