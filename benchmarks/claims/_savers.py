"""The ways to save that ``stall`` compares, behind one seam. All of them make their files durable with fsync."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

import holdfast as hf
from benchmarks.training import Learner
from holdfast.policy.strategy import Strategy, StrategyContext
from holdfast.types import Kind

Durable = Callable[[], bool]


class Saver(Protocol):
    """One way to save a learner."""

    def prepare(self) -> None:
        """What has nothing to do with the save's cost; the clock does not run yet."""
        ...

    def save(self) -> Durable:
        """Save; returns when the loop may go on, with the question whether the save is durable by now."""
        ...

    def clean_up(self) -> None:
        """Make room for the next save."""
        ...


@dataclass(frozen=True, slots=True)
class Alternate(Strategy):
    """A baseline, a delta, a baseline, a delta ..."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.FULL if context.deltas.count else Kind.INCREMENTAL


class Holdfast:
    """A full save or a delta, by turns; the rows that a delta shall hold are marked before it."""

    def __init__(self, guard: hf.Checkpointer, rows: Mapping[str, Tensor] | None = None) -> None:
        self._guard = guard
        self._rows = rows or {}

    def prepare(self) -> None:
        for table, ids in self._rows.items():
            self._guard.mark(table, ids)

    def save(self) -> Durable:
        committed = self._guard.stats.committed
        self._guard.save()
        return lambda: self._guard.stats.committed > committed

    def clean_up(self) -> None:
        """The agent deletes what its retention policy drops."""


class _Files:
    """What the savers of PyTorch share: the state as one dictionary, and a new path for each save."""

    def __init__(self, learner: Learner, folder: Path) -> None:
        self._learner = learner
        self._folder = folder
        self._saves = 0

    def prepare(self) -> None:
        self._saves += 1
        self._folder.mkdir(exist_ok=True)

    def clean_up(self) -> None:
        shutil.rmtree(self._folder)

    @property
    def _path(self) -> Path:
        return self._folder / str(self._saves)

    def _state(self) -> dict[str, Any]:
        optimizers = {str(number): o.state_dict() for number, o in enumerate(self._learner.optimizers)}
        return {"model": self._learner.model.state_dict(), "optimizers": optimizers}


class TorchSave(_Files):
    """``torch.save`` and fsync: the loop waits for all of it."""

    def save(self) -> Durable:
        with self._path.open("wb") as file:
            torch.save(self._state(), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: True


class DcpThread(_Files):
    """``dcp.async_save`` as it comes: a fresh copy, written by a thread."""

    def save(self) -> Durable:
        future = cast("Future[Any]", async_save(self._state(), checkpoint_id=self._path, no_dist=True))
        return lambda: _finished(future)


class DcpBest(_Files):
    """``dcp.async_save`` at its best: a reused copy in shared memory, written by a process that stays."""

    def __init__(self, learner: Learner, folder: Path) -> None:
        super().__init__(learner, folder)
        self._stager = DefaultStager(
            StagingOptions(
                use_shared_memory=True, use_pinned_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
        )
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # where its process looks for its peers
        dist.init_process_group("gloo", init_method=f"file://{folder}.peers", rank=0, world_size=1)
        self.prepare()
        self._save({"start its process": torch.zeros(1)}).result()
        self.clean_up()

    def save(self) -> Durable:
        future = self._save(self._state())
        return lambda: _finished(future)

    def _save(self, state: dict[str, Any]) -> Future[Any]:
        saved = async_save(
            state,
            storage_writer=FileSystemWriter(self._path, sync_files=True),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        return cast("Future[Any]", saved)

    def close(self) -> None:
        """End its process and free its memory."""
        _async_process_executor._CHECKPOINT_PROCESS = None
        self._stager.close()
        dist.destroy_process_group()


def _finished(future: Future[Any]) -> bool:
    if future.done():
        future.result()  # raises what went wrong
    return future.done()
