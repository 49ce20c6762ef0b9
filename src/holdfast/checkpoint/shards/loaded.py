"""What a load of shards has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.format.state import JobState, RankState
from holdfast.types import CheckpointInfo, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedState:
    """What a checkpoint holds beside rows. Tensors are ``HostTensor``; ``arrays_in`` takes their arrays out.

    Args:
        training: Dense weights, optimizers and extras, as the first writer gave them.
        ranks: The own state of each writer, in the order of parts.
    """

    training: Mapping[str, Any]
    ranks: tuple[RankState, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """The shards hold this now.

    Args:
        info: The checkpoint that they were loaded from.
        baseline: The checkpoint that it stands on.
        job: The history that the next saves are decided from.
        state: What the checkpoint holds beside rows. None: it was not asked for.
        missing: Columns that the checkpoint does not have, by table: the shards' arrays are as they were.
        unused: Columns that the shards do not have, by table.
        newest: What each writer gave with the newest rows, where a priority save after the checkpoint holds them.
        newest_step: The step of the newest rows; later than the checkpoint's where priority saves came after it.
        specs: The tables' columns as stored, of those tables that could be loaded wholly.
        above: The rows of each shard that the checkpoint holds above its baseline. None: all.
        is_newest: Whether it holds the newest rows saved, of several steps, and not the checkpoint's.
    """

    info: CheckpointInfo
    baseline: CheckpointInfo
    job: JobState
    state: LoadedState | None
    missing: Mapping[str, tuple[str, ...]]
    unused: Mapping[str, tuple[str, ...]]
    newest_step: int
    specs: tuple[TableSpec, ...]
    above: Mapping[str, NDArray[np.int64] | None] = field(default_factory=dict)
    is_newest: bool = False
    newest: tuple[RankState, ...] = ()
