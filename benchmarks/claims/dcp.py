"""What a state dict costs to save and load through DCP: with our Writer and Reader, beside DCP's own.

All take turns on the same state dict, in one process, each save to a folder of its own. DCP's own writer syncs its
files, as ours does, and is measured with one thread, as it comes, and with more; what is compared is its fastest.
Before each save and load the disk has nothing left to do from the one before, memory is at hand, and nothing is deleted
meanwhile. The first round warms them up and is dropped. Figures are medians over rounds, ratios those of neighbours in
a round.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
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
OURS = "ours"
RIVALS = {"1 thread": 1, "2 threads": 2, "4 threads": 4}  # settings of DCP's own writer
DEFAULT = "1 thread"
AT_HAND_BYTES = 3 << 29  # of free memory, before each save and load


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    state_bytes: int
    rounds: int  # the first is not counted


PLANS = {
    "tiny": Plan(state_bytes=4 << 20, rounds=2),
    "small": Plan(state_bytes=1 << 30, rounds=6),
    "full": Plan(state_bytes=1 << 30, rounds=16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round: what each took, in seconds, by its name, and what ours wrote, in bytes."""

    saves_s: Mapping[str, float]
    loads_s: Mapping[str, float]
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
        tables=[
            _table("saves", [turn.saves_s for turn in turns], the_disk_alone=[turn.disk_s for turn in turns]),
            _table("loads", [turn.loads_s for turn in turns]),
        ],
        figures={**_figures(turns), "state_bytes": plan.state_bytes, "rounds": len(turns)},
    )


def _turn(scratch: Path, state: dict[str, Tensor], number: int) -> Turn:
    """All tensors are new to all; who goes first changes from round to round."""
    for tensor in state.values():
        tensor.add_(1.0)
    folders = {name: scratch / name for name in (OURS, *RIVALS)}
    saves_s = _in_turns({name: partial(_save, name, state, folder) for name, folder in folders.items()}, number)
    os.sync()
    disk_s = disk_floor_s(scratch, sum(tensor.nbytes for tensor in state.values()))
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    loaders = {name: partial(_load, name, target, folder) for name, folder in folders.items()}
    loads_s = _in_turns(loaders, number, warm=True)
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    for name in list(state)[:: TENSORS // CHANGED]:
        state[name].add_(1.0)
    _save(OURS, state, folders[OURS], step=2)
    first, second = (info.size_bytes for info in hf.open_run(folders[OURS]).checkpoints())
    for folder in folders.values():
        shutil.rmtree(folder)
    return Turn(saves_s=saves_s, loads_s=loads_s, first_bytes=first, second_bytes=second, disk_s=disk_s)


def _save(name: str, state: dict[str, Tensor], folder: Path, step: int = 1) -> None:
    writer = (
        hf.dcp.Writer(folder, step=step, retention=hf.KeepAll())
        if name == OURS
        else FileSystemWriter(folder, thread_count=RIVALS[name])  # which syncs its files unless told otherwise
    )
    save(state, storage_writer=writer)


def _load(name: str, target: dict[str, Tensor], folder: Path) -> None:
    load(target, storage_reader=hf.dcp.Reader(folder) if name == OURS else FileSystemReader(folder))


def _in_turns(calls: Mapping[str, Callable[[], None]], number: int, *, warm: bool = False) -> dict[str, float]:
    """What each takes, the machine at rest before it; another one begins in every round.

    Args:
        calls: What to call, by name.
        number: The round's.
        warm: Whether each is called twice, so that the files that it reads are in memory the second time.
    """
    taken = {}
    for name in (*islice(calls, number % len(calls), None), *islice(calls, number % len(calls))):
        if warm:
            calls[name]()
        _rest()
        started = time.perf_counter()
        calls[name]()
        taken[name] = time.perf_counter() - started
    return taken


def _rest() -> None:
    """Let the disk end what it has to do, and have free memory at hand.

    A virtual machine gives free memory back to its host; who gets it first after that waits for the host. DCP's own
    writer would, because it fills the page cache.
    """
    os.sync()
    np.ones(AT_HAND_BYTES, dtype=np.uint8)


def _figures(turns: list[Turn]) -> dict[str, Figure]:
    saves = {name: [turn.saves_s[name] for turn in turns] for name in (OURS, *RIVALS)}
    loads = {name: [turn.loads_s[name] for turn in turns] for name in (OURS, *RIVALS)}
    disk = [turn.disk_s for turn in turns]
    saver, loader = (min(RIVALS, key=lambda name: median(times[name])) for times in (saves, loads))
    return {
        "dcp_save_over_native": _ratio(saves[OURS], saves[saver]),
        "dcp_save_over_native_default": _ratio(saves[OURS], saves[DEFAULT]),
        "dcp_load_over_native": _ratio(loads[OURS], loads[loader]),
        "dcp_second_save_bytes_over_first": max(turn.second_bytes / turn.first_bytes for turn in turns),
        "dcp_save_over_disk_floor": _ratio(saves[OURS], disk),
        "disk_floor_over_native": _ratio(disk, saves[saver]),
        "disk_floor_s": median(disk),
        "save_s": median(saves[OURS]),
        "native_save_s": median(saves[saver]),
        "native_default_save_s": median(saves[DEFAULT]),
        "native_fastest_save": saver,
        "load_s": median(loads[OURS]),
        "native_load_s": median(loads[loader]),
        "native_fastest_load": loader,
    }


def _ratio(ours: list[float], others: list[float]) -> float:
    return median(one / other for one, other in zip(ours, others, strict=True))


def _table(what: str, rows: list[Mapping[str, float]], **more: list[float]) -> Table:
    return Table(
        caption=f"{what}, seconds in each round; DCP's own by the threads of its writer",
        headers=(OURS, *RIVALS, *(name.replace("_", " ") for name in more)),
        rows=[
            (*(row[name] for name in (OURS, *RIVALS)), *(values[at] for values in more.values()))
            for at, row in enumerate(rows)
        ],
    )
