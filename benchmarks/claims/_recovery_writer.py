"""Saves a trace with one strategy: the trainer of the ``recovery`` claim, which only edits rows and saves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.claims._agent import await_quiet, bytes_written
from benchmarks.claims._trace import TABLE, Trace
from benchmarks.files import object_sizes
from holdfast.format.catalog import DATA_PREFIX
from holdfast.policy import Strategy
from holdfast.types import Kind

_POLL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What saving a whole trace came to; the baseline that every strategy takes first is left out."""

    blocking_s: Sequence[float]  # of each save: how long the loop waited
    durable_s: Sequence[float]  # of each save: until the trainer knew that it was committed
    saved_bytes: int  # of all deltas, as they were saved
    kept_bytes: int  # of everything in the run's folder in the end
    agent_bytes: int  # that the agent wrote in all, catalogs and leases included; 0 where the system does not tell
    baselines: int  # taken later on
    counters: Mapping[str, float]  # of the grid; zeros where there is none


class Writer:
    """A table under the protection of one strategy, saved interval by interval as fast as the saves get durable."""

    def __init__(self, strategy: Strategy, folder: Path, trace: Trace) -> None:
        self._folder = folder
        self._trace = trace
        embedding = nn.Embedding(trace.rows, trace.dim, sparse=True, _weight=_first_state(trace))
        self._table = embedding.weight.data  # edits of it are known by mark() alone
        self._guard = hf.Checkpointer(
            folder,
            model=nn.ModuleDict({TABLE: embedding}),
            save=hf.Never(),
            strategy=strategy,
            retention=hf.KeepAll(),
            settings=hf.Settings(grace_s=0.0, handle_sigterm=False),
        )
        self._interval = 0
        self._blocking_s: list[float] = []
        self._durable_s: list[float] = []
        self._guard.save(wait=True)
        self.settle()
        self._first_baseline = object_sizes(folder / DATA_PREFIX).keys()
        self._agent_bytes = bytes_written(self._guard.agent_pid)

    def advance(self, intervals: int) -> None:
        """Edit and save so many intervals more, each as soon as the save before is durable."""
        for _ in range(intervals):
            started_s = self._save()
            while self._guard.stats.committed <= self._interval:
                time.sleep(_POLL_S)
                self._guard.step()
            self._durable_s.append(time.perf_counter() - started_s)

    def save_last(self) -> None:
        """Edit and save the last interval, until a reader sees it; what the agent does after that goes on.

        The loop makes no step after it, or ``close`` would save once more.
        """
        started_s = self._save()
        run = hf.open_run(self._folder)
        while len(run.checkpoints()) <= self._interval:
            time.sleep(_POLL_S)
        self._durable_s.append(time.perf_counter() - started_s)

    def settle(self) -> None:
        """Until the last save is committed and the agent has nothing more to do."""
        self._guard.drain(arranged=True)
        await_quiet(self._guard.agent_pid)

    def close(self) -> Written:
        """End the agent; what it all came to."""
        self.settle()
        agent_bytes = bytes_written(self._guard.agent_pid) - self._agent_bytes
        self._guard.close()
        checkpoints = hf.open_run(self._folder).checkpoints()[1:]
        assert len(checkpoints) == self._interval, "a save failed, or there was one too many"
        objects = object_sizes(self._folder)
        return Written(
            blocking_s=self._blocking_s,
            durable_s=self._durable_s,
            saved_bytes=sum(info.size_bytes for info in checkpoints if info.kind is not Kind.FULL),
            kept_bytes=sum(objects.values()) - sum(objects.get(name, 0) for name in self._first_baseline),
            agent_bytes=agent_bytes,
            baselines=sum(info.kind is Kind.FULL for info in checkpoints),
            counters=self._guard.stats.grid.to_json(),
        )

    def _save(self) -> float:
        """Edit the next interval's rows and save them; when the save began."""
        self._interval += 1
        self._guard.mark(TABLE, self._trace.update(self._table, self._interval))
        self._guard.step()
        started_s = time.perf_counter()
        self._guard.save()
        self._blocking_s.append(time.perf_counter() - started_s)
        return started_s


def _first_state(trace: Trace) -> Tensor:
    table = torch.empty(trace.rows, trace.dim)
    trace.fill(table, 0)
    return table
