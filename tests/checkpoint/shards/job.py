"""A job of several writers in one process: tables, how they are divided, and what they should hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards import Loaded, SavePolicies, Shard, ShardedRun, ShardWriter
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.events import SaveCommitted
from holdfast.format.state import RankState
from holdfast.storage import Store
from holdfast.types import CheckpointInfo

Columns = dict[str, NDArray[Any]]
Tables = dict[str, Columns]
Cuts = Mapping[str, Sequence[int]]  # where a table is cut, by name: one number less than there are ranges

SETTINGS = Settings(reserve_bytes=0, frame_bytes=64 * 4096, buffer_bytes=2 * 64 * 4096)
TRAINING = {"model": {"mlp.weight": np.arange(6, dtype=np.float32)}, "modules": {}, "optimizers": [], "extra": {}}


def some_tables(sizes: Sequence[int], *, dim: int = 4, seed: int = 0) -> Tables:
    """Tables of these sizes with Adagrad's slot: every second one with that of row-wise Adagrad."""
    random = np.random.default_rng(seed)

    def values(*shape: int) -> NDArray[Any]:
        return random.normal(size=shape).astype(np.float32)

    return {
        f"emb.{number}": {"weight": values(rows, dim), "sum": values(rows) if number % 2 else values(rows, dim)}
        for number, rows in enumerate(sizes)
    }


def even_cuts(tables: Tables, parts: int) -> dict[str, list[int]]:
    """Ranges of about the same size."""
    rows = {name: len(columns["weight"]) for name, columns in tables.items()}
    return {name: [count * cut // parts for cut in range(1, parts)] for name, count in rows.items()}


def divided(tables: Tables, cuts: Cuts, part: int, *, group: str = "") -> list[Shard]:
    """What one of the processes holds, as copies: of table t the range (part - t), so ranges are not in order."""
    shards = []
    for number, (name, columns) in enumerate(tables.items()):
        rows = len(columns["weight"])
        bounds = [0, *sorted(cuts[name]), rows]
        place = (part - number) % (len(bounds) - 1)
        low, high = bounds[place], bounds[place + 1]
        own = {column: values[low:high].copy() for column, values in columns.items()}
        shards.append(Shard(table=name, rows=rows, first=low, columns=own, group=group))
    return shards


def change(tables: Tables, seed: int, share: float = 0.3) -> None:
    """Change some rows of every table: those and by what the seed says."""
    random = np.random.default_rng(seed)
    for columns in tables.values():
        rows = np.flatnonzero(random.random(len(columns["weight"])) < share)
        for values in columns.values():
            values[rows] += random.normal(size=values[rows].shape).astype(values.dtype)


class Job:
    """The writers of a run. ``tables`` is what all of them together hold."""

    def __init__(
        self,
        store: Store | str,
        tables: Tables,
        parts: int,
        cuts: Cuts | None = None,
        policies: SavePolicies = SavePolicies(),  # noqa: B008 - frozen
        settings: Settings = SETTINGS,
        only: int | None = None,
    ) -> None:
        """``only``: this part; the others are elsewhere."""
        self.store, self.tables, self.parts = store, tables, parts
        self.cuts = cuts if cuts is not None else even_cuts(tables, parts)
        self.policies, self.settings = policies, settings
        here = range(parts) if only is None else [only]
        self.runs = [ShardedRun(store, settings=settings) for _ in here]
        self.shards = [divided(tables, self.cuts, part) for part in here]
        self.writers = [self._writer(part, number) for number, part in enumerate(here)]
        self.term = 0
        self.step = 0

    def _writer(self, part: int, number: int | None = None) -> ShardWriter:
        number = part if number is None else number
        return ShardWriter(
            self.runs[number],
            self.shards[number],
            part=part,
            parts=self.parts,
            policies=self.policies,
            settings=self.settings,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.close()

    def start(self, *, load: bool = False) -> list[Loaded]:
        self.term = self.runs[0].take_over()
        loaded = []
        if load:
            best = self.runs[0].candidates()[0]
            loaded = [run.load(shards, best.id) for run, shards in zip(self.runs, self.shards, strict=True)]
            self.runs[0].go_back(best.id)
            self.step = best.step
        for writer, found in zip(self.writers, loaded or [None] * self.parts, strict=True):
            writer.start(self.term, found)
        return loaded

    def update(self, seed: int, share: float = 0.3) -> None:
        """Change some rows of every table, and tell the writers that hold them."""
        change(self.tables, seed, share)
        self.step += 1
        for part, writer in enumerate(self.writers):
            self._copy(part, writer)

    def _copy(self, part: int, writer: ShardWriter) -> None:
        for shard in self.shards[part]:
            live = {name: values[shard.first : shard.stop] for name, values in self.tables[shard.table].items()}
            changed = [
                (live[name] != held).any(axis=tuple(range(1, held.ndim))) for name, held in shard.columns.items()
            ]
            rows = np.flatnonzero(np.logical_or.reduce(changed))
            for name, held in shard.columns.items():
                held[rows] = live[name][rows]
            writer.mark(shard.group, rows)

    def intend(self, **options: Any) -> dict[str, Any] | None:
        leader = self.writers[0]
        changed = [writer.changed() for writer in self.writers] if leader.counts_changes else []
        return leader.intend(self.step, changed=changed, force=True, **options)

    def capture(self, intent: dict[str, Any], part: int) -> bool:
        state = RankState(step=self.step, reader={"part": part})
        writer = self.writers[part] if len(self.writers) == self.parts else self.writers[0]
        return writer.capture(intent, state, training=TRAINING if part == 0 else None)

    def save(self, **options: Any) -> CheckpointInfo:
        """One save of all writers, up to its commit."""
        intent = self.intend(**options)
        assert intent is not None
        assert all([self.capture(intent, part) for part in range(self.parts)])
        committed = []
        for writer in self.writers:
            writer.settle()
            committed += [event.info for event in writer.poll() if isinstance(event, SaveCommitted)]
        assert len(committed) == self.parts, "not everybody has seen the commit"
        return committed[0]


def load(
    store: Store | str, tables: Tables, parts: int, *, step: int | None = None, cuts: Cuts | None = None
) -> Tables:
    """The tables of a checkpoint, loaded in so many shards and put together."""
    empty = {
        name: {column: np.full_like(values, np.nan) for column, values in columns.items()}
        for name, columns in tables.items()
    }
    cuts = cuts if cuts is not None else even_cuts(tables, parts)
    for part in range(parts):
        shards = divided(empty, cuts, part)
        ShardedRun(store, settings=SETTINGS).load(shards, step)
        for shard in shards:
            for name, values in shard.columns.items():
                empty[shard.table][name][shard.first : shard.stop] = values
    return empty


def same(left: Tables, right: Tables) -> bool:
    return all(
        np.array_equal(left[table][name], right[table][name]) for table, columns in right.items() for name in columns
    )


def copied(tables: Tables) -> Tables:
    return {table: {name: values.copy() for name, values in columns.items()} for table, columns in tables.items()}
