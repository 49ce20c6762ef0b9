"""What protects rows in parity's benchmark: nothing, parity, copies, or gradients that are sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.claims import _cluster_job, _parity_job, _parity_twice
from holdfast.policy.parity import FAST, PROCESS, Parity

NOTHING, PARITY, GRADIENTS, COPIES = "nothing", "parity", "gradients", "copies"
ALL = (NOTHING, PARITY, GRADIENTS, COPIES)
ENCODED = {PARITY, COPIES}  # first of all, from the rows that a training begins with
WHOLE = "whole"  # a file that says when that is done


def protected(data: int, **options: Any) -> Parity:
    """Parity for servers that all run on this machine, and die one by one."""
    return Parity(data=data, parity=1, domain=PROCESS, **options)


def options_of(rival: str, data: int) -> Mapping[str, Any]:
    """What a cluster is told; ``data``: rows that share a parity."""
    train = {"model": _cluster_job.build_model, "train": _parity_job.train}
    rivals: dict[str, Mapping[str, Any]] = {
        NOTHING: train,
        PARITY: {**train, "parity": protected(data, rebuild=FAST)},
        COPIES: {**train, "parity": protected(1, rebuild=FAST)},
        GRADIENTS: {"model": _parity_twice.build, "train": _parity_twice.train},
    }
    return rivals[rival]
