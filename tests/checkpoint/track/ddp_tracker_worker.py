"""One of the ranks of test_tracker_ddp: trains many cases with the other and proves that no rank misses a row."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from dataclasses import fields

import torch
import torch.distributed as dist
from torch import nn

from tests.checkpoint.track.tracker_cases import CASES, Case, Mark, Training
from tests.checkpoint.track.tracker_checks import Run, prove_no_row_is_missed
from tests.exchange import exchange_gradients

SITUATIONS = {"plain", "bag", "accumulated", "max_norm", "tied", "shared", "functional", "direct_forward", "evaluated"}


def chosen(case: Case) -> bool:
    """The situations in which rows come from other ranks; the others are the same with one process."""
    return case.situation.name in SITUATIONS and case.rule.depth != "shallow"


class Exchanging(Training):
    """Ranks that exchange sparse gradients themselves, before the optimizers see them."""

    def step_optimizers(self, number: int) -> None:
        exchange_gradients(self.net)
        super().step_optimizers(number)


def accumulated_without_sync(training: Training, number: int, mark: Mark) -> None:
    """Gradients of the first batch are exchanged with those of the second."""
    if number % 2 == 0:
        training.zero_grad()
        with training.model.no_sync():
            training.backward(number)
    else:
        training.backward(number)
        training.step_optimizers(number)


def distributed(case: Case, rank: int) -> Training:
    training = case.build(rank)
    if case.gradient == "sparse":
        return Exchanging(**{each.name: getattr(training, each.name) for each in fields(training)})
    # Without the graph of `out`, which most cases leave unused, DDP would wait for its gradients.
    training.model = nn.parallel.DistributedDataParallel(training.model, find_unused_parameters=True)
    if case.situation.name == "accumulated":
        training.step = accumulated_without_sync
    return training


def main(rank: int, world: int, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    cases = [case for case in CASES if chosen(case)]
    for case in cases:
        try:
            prove_no_row_is_missed(Run(case, distributed(case, rank)))
        except Exception:
            print(f"rank {rank}, {case.name}:\n{traceback.format_exc()}", flush=True)
            os._exit(1)  # at once: the other rank is waiting in a collective
    print(f"rank {rank}: {len(cases)} cases passed", flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an orderly exit, seldom, whatever the cases said


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
