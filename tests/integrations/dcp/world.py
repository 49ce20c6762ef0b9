"""Gloo processes that are started once and run all cases of their world size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

PATIENCE_S = 240.0  # for a busy machine; a case that hangs ends by the group's timeout

Outcome = dict[str, list[str]]  # by case: what went wrong, of each rank that it did


def run_world(place: Path, world: int, cases: list[str], *, dying: int | None = None) -> Outcome:
    """Run cases, in their order, in so many processes; one of them may be about to die."""
    log = place / f"log-{world}"
    with log.open("w") as output:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(place), str(rank), str(world), *cases],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank in range(world)
        ]
        try:
            for each in ranks:
                each.wait(PATIENCE_S)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    outcome: Outcome = {case: [] for case in cases}
    for rank in set(range(world)) - {dying}:
        result = place / f"result-{world}-{rank}"
        assert result.exists(), f"rank {rank} of {world} ended early:\n{log.read_text()}"
        for case, problem in json.loads(result.read_text()).items():
            outcome[case] += [f"rank {rank} of {world}: {problem}"] if problem else []
    return outcome


def _main(place: Path, rank: int, world: int, names: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.api import CheckpointException

    from tests.integrations.dcp import cases

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rendezvous = f"file://{place}/rendezvous-{world}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    results: dict[str, str | None] = {}
    for name in names:
        torch.manual_seed(7)
        try:
            getattr(cases, name)(cases.Place(place))
            results[name] = None
        except (Exception, CheckpointException):  # which is no Exception
            results[name] = traceback.format_exc()
    (place / f"result-{world}-{rank}").write_text(json.dumps(results))
    with suppress(RuntimeError):  # where a rank has died
        dist.barrier()
    os._exit(0)  # to leave the group would wait for it


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
