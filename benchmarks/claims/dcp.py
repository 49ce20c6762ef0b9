"""What a state dict costs to save and load through DCP: with our Writer and Reader, beside DCP's own.

Both take turns on the same state dict, in one process, each save to a folder of its own; DCP's own writer syncs its
files, as ours does. The first round warms them up and is dropped. What is compared is the median over rounds, each with
its neighbour.
"""

from __future__ import annotations

import logging
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import holdfast as hf
from benchmarks.claims._disk_floor import disk_floor_s
from benchmarks.report import Figure, Report, Table

SEED = 5
TENSORS = 100
CHANGED = 10  # of them, for the second save


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    state_bytes: int
    rounds: int  # the first is not counted


PLANS = {
    "tiny": Plan(state_bytes=4 << 20, rounds=2),
    "small": Plan(state_bytes=1 << 30, rounds=5),
    "full": Plan(state_bytes=1 << 30, rounds=15),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round: what each took, in seconds, and what ours wrote, in bytes."""

    native_save_s: float
    save_s: float
    native_load_s: float
    load_s: float
    first_bytes: int
    second_bytes: int
    disk_s: float  # that the same bytes take the disk alone


def run(scale: str) -> Report:
    """Save and load in turns."""
    plan = PLANS[scale]
    torch.manual_seed(SEED)
    state = {f"layer{number}.weight": torch.rand(plan.state_bytes // 4 // TENSORS) for number in range(TENSORS)}
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        turns = [_turn(Path(scratch), state, number) for number in range(plan.rounds)][1:]
    return Report(
        title="A state dict through torch.distributed.checkpoint",
        tables=[_table(turns)],
        figures={**_figures(turns), "state_bytes": plan.state_bytes, "rounds": len(turns)},
    )


def _turn(scratch: Path, state: dict[str, Tensor], number: int) -> Turn:
    """All tensors are new to both; who goes first changes from round to round."""
    for tensor in state.values():
        tensor.add_(1.0)
    native, ours = scratch / "native", scratch / "ours"
    savers: dict[str, Callable[[], Any]] = {
        "native": lambda: save(state, storage_writer=FileSystemWriter(native)),
        "ours": lambda: save(state, storage_writer=hf.dcp.Writer(ours, step=1, retention=hf.KeepAll())),
    }
    saved = _in_turns(savers, number)
    disk_s = disk_floor_s(scratch, sum(tensor.nbytes for tensor in state.values()))
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    loaders: dict[str, Callable[[], Any]] = {
        "native": lambda: load(target, storage_reader=FileSystemReader(native)),
        "ours": lambda: load(target, storage_reader=hf.dcp.Reader(ours)),
    }
    for warm in loaders.values():  # their files are in memory from here on
        warm()
    loaded = _in_turns(loaders, number)
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    for name in list(state)[:: TENSORS // CHANGED]:
        state[name].add_(1.0)
    save(state, storage_writer=hf.dcp.Writer(ours, step=2, retention=hf.KeepAll()))
    first, second = (info.size_bytes for info in hf.open_run(ours).checkpoints())
    for folder in (native, ours):
        shutil.rmtree(folder)
    return Turn(
        native_save_s=saved["native"],
        save_s=saved["ours"],
        native_load_s=loaded["native"],
        load_s=loaded["ours"],
        first_bytes=first,
        second_bytes=second,
        disk_s=disk_s,
    )


def _in_turns(calls: dict[str, Callable[[], Any]], number: int) -> dict[str, float]:
    taken = {}
    for name in sorted(calls, reverse=bool(number % 2)):
        started = time.perf_counter()
        calls[name]()
        taken[name] = time.perf_counter() - started
    return taken


def _figures(turns: list[Turn]) -> dict[str, Figure]:
    return {
        "dcp_save_over_native": statistics.median(turn.save_s / turn.native_save_s for turn in turns),
        "dcp_load_over_native": statistics.median(turn.load_s / turn.native_load_s for turn in turns),
        "dcp_second_save_bytes_over_first": max(turn.second_bytes / turn.first_bytes for turn in turns),
        "dcp_save_over_disk_floor": statistics.median(turn.save_s / turn.disk_s for turn in turns),
        "disk_floor_over_native": statistics.median(turn.disk_s / turn.native_save_s for turn in turns),
        "save_s": statistics.median(turn.save_s for turn in turns),
        "native_save_s": statistics.median(turn.native_save_s for turn in turns),
        "load_s": statistics.median(turn.load_s for turn in turns),
        "native_load_s": statistics.median(turn.native_load_s for turn in turns),
    }


def _table(turns: list[Turn]) -> Table:
    return Table(
        caption=f"rounds; the second save changed {CHANGED} of {TENSORS} tensors",
        headers=("save, s", "DCP's own", "load, s", "DCP's own", "second save / first"),
        rows=[
            (turn.save_s, turn.native_save_s, turn.load_s, turn.native_load_s, turn.second_bytes / turn.first_bytes)
            for turn in turns
        ],
    )
