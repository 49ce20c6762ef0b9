"""Holdfast: incremental, crash-safe checkpoints for recommendation models.

The public names are imported on first use, because the agent process imports this package without PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.checkpoint.track.row_local import RowLocal as RowLocal
    from holdfast.checkpoint.trainer.settings import Settings as Settings
    from holdfast.checkpoint.training.keyed import KeyedTable as KeyedTable
    from holdfast.checkpoint.training.plain_loader import Replayed as Replayed
    from holdfast.cluster.cluster import Cluster as Cluster
    from holdfast.cluster.launch.local import LocalProcesses as LocalProcesses
    from holdfast.cluster.launch.ray.settings import Ray as Ray
    from holdfast.cluster.worker.worker import Worker as Worker
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import JobFailed as JobFailed
    from holdfast.errors import SaveFailed as SaveFailed
    from holdfast.errors import TakenOver as TakenOver
    from holdfast.errors import Terminated as Terminated
    from holdfast.follower import Follower as Follower
    from holdfast.integrations import dcp as dcp
    from holdfast.integrations import lightning as lightning
    from holdfast.integrations import metrics as metrics
    from holdfast.policy import MFU as MFU
    from holdfast.policy import PLS as PLS
    from holdfast.policy import SCAR as SCAR
    from holdfast.policy import SGD as SGD
    from holdfast.policy import SSU as SSU
    from holdfast.policy import Adagrad as Adagrad
    from holdfast.policy import Adam as Adam
    from holdfast.policy import Auto as Auto
    from holdfast.policy import Bits as Bits
    from holdfast.policy import Consecutive as Consecutive
    from holdfast.policy import Constant as Constant
    from holdfast.policy import DeadShare as DeadShare
    from holdfast.policy import EveryMinutes as EveryMinutes
    from holdfast.policy import EverySteps as EverySteps
    from holdfast.policy import Exact as Exact
    from holdfast.policy import Full as Full
    from holdfast.policy import Grid as Grid
    from holdfast.policy import Intermittent as Intermittent
    from holdfast.policy import KeepAll as KeepAll
    from holdfast.policy import KeepBest as KeepBest
    from holdfast.policy import KeepEvery as KeepEvery
    from holdfast.policy import KeepLast as KeepLast
    from holdfast.policy import KeepTagged as KeepTagged
    from holdfast.policy import Ladder as Ladder
    from holdfast.policy import Never as Never
    from holdfast.policy import Normal as Normal
    from holdfast.policy import OneShot as OneShot
    from holdfast.policy import Overlap as Overlap
    from holdfast.policy import Pairs as Pairs
    from holdfast.policy import PaperTable as PaperTable
    from holdfast.policy import Parity as Parity
    from holdfast.policy import Partial as Partial
    from holdfast.policy import PerTable as PerTable
    from holdfast.policy import RowwiseAdagrad as RowwiseAdagrad
    from holdfast.policy import TimeToLive as TimeToLive
    from holdfast.policy import Uniform as Uniform
    from holdfast.policy import tables as tables
    from holdfast.run import Run as Run
    from holdfast.run import import_checkpoint as import_checkpoint
    from holdfast.run import open_run as open_run
    from holdfast.session import Checkpointer as Checkpointer
    from holdfast.types import CheckpointInfo as CheckpointInfo

__version__ = "0.1.0"

_HOMES = {
    "holdfast.checkpoint.track.row_local": ("RowLocal",),
    "holdfast.checkpoint.trainer.settings": ("Settings",),
    "holdfast.checkpoint.training.keyed": ("KeyedTable",),
    "holdfast.checkpoint.training.plain_loader": ("Replayed",),
    "holdfast.cluster.cluster": ("Cluster",),
    "holdfast.cluster.launch.local": ("LocalProcesses",),
    "holdfast.cluster.launch.ray.settings": ("Ray",),
    "holdfast.cluster.worker.worker": ("Worker",),
    "holdfast.errors": ("HoldfastError", "JobFailed", "SaveFailed", "TakenOver", "Terminated"),
    "holdfast.follower": ("Follower",),
    "holdfast.policy": (
        "Adagrad",
        "Adam",
        "Auto",
        "Bits",
        "Consecutive",
        "Constant",
        "DeadShare",
        "EveryMinutes",
        "EverySteps",
        "Exact",
        "Full",
        "Grid",
        "Intermittent",
        "KeepAll",
        "KeepBest",
        "KeepEvery",
        "KeepLast",
        "KeepTagged",
        "Ladder",
        "MFU",
        "Never",
        "Normal",
        "OneShot",
        "Overlap",
        "PLS",
        "Pairs",
        "PaperTable",
        "Parity",
        "Partial",
        "PerTable",
        "RowwiseAdagrad",
        "SCAR",
        "SGD",
        "SSU",
        "TimeToLive",
        "Uniform",
        "tables",
    ),
    "holdfast.run": ("Run", "import_checkpoint", "open_run"),
    "holdfast.session": ("Checkpointer",),
    "holdfast.types": ("CheckpointInfo",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {  # under the interfaces of other libraries
    "dcp": "holdfast.integrations.dcp",
    "lightning": "holdfast.integrations.lightning",
    "metrics": "holdfast.integrations.metrics",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        value: object = import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__version__"]
