"""Gloo processes that are started once and run all cases, in a world of each size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

PATIENCE_S = 240.0  # for a busy machine; a case that hangs ends by the group's timeout

Outcome = dict[str, list[str]]  # by case: what went wrong, of each rank that it did


def run_worlds(place: Path, worlds: Sequence[int], cases: list[str], *, dying: int | None = None) -> dict[int, Outcome]:
    """Run cases, in their order, in worlds of so many processes, one after another; a rank may be about to die."""
    log = place / "log"
    with log.open("w") as output:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(place), str(rank), ",".join(map(str, worlds)), *cases],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank in range(max(worlds))
        ]
        try:
            for each in ranks:
                each.wait(PATIENCE_S)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    return {world: _outcome(place, world, cases, log, dying) for world in worlds}


def _outcome(place: Path, world: int, cases: list[str], log: Path, dying: int | None) -> Outcome:
    outcome: Outcome = {case: [] for case in cases}
    for rank in set(range(world)) - {dying}:
        result = place / f"result-{world}-{rank}"
        assert result.exists(), f"rank {rank} of {world} ended early:\n{log.read_text()}"
        for case, problem in json.loads(result.read_text()).items():
            outcome[case] += [f"rank {rank} of {world}: {problem}"] if problem else []
    return outcome


def _main(place: Path, rank: int, worlds: list[int], names: list[str]) -> None:
    """Processes live through all worlds that have a place for them: to start one takes longer than its cases."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for before, world in zip([0, *worlds], worlds, strict=False):
        if rank >= world:
            continue
        while not all((place / f"result-{before}-{each}").exists() for each in range(before)):
            time.sleep(0.05)  # a meeting has a time limit, and others may take longer over theirs
        meeting = f"file://{place}/rendezvous-{world}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        (place / f"result-{world}-{rank}").write_text(json.dumps(_results(place, names)))
        with suppress(RuntimeError):  # where a rank has died
            dist.barrier()
        if world != worlds[-1]:
            dist.destroy_process_group()
    os._exit(0)  # to leave the last group would wait for it


def _results(place: Path, names: list[str]) -> dict[str, str | None]:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException

    from tests.integrations.dcp import cases

    results: dict[str, str | None] = {}
    for name in names:
        torch.manual_seed(7)
        try:
            getattr(cases, name)(cases.Place(place))
            results[name] = None
        except (Exception, CheckpointException):  # which is no Exception
            results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")], sys.argv[4:])
