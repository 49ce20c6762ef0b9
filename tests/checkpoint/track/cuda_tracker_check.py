"""Proves on a GPU that no row is missed and that the tracker's hooks never wait for the device. Needs no pytest.

PYTHONPATH=src:. python tests/checkpoint/track/cuda_tracker_check.py
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.tables import find_tables
from holdfast.types import Kind, Since
from tests.checkpoint.track.tracker_cases import CASES, Case
from tests.checkpoint.track.tracker_checks import Run, prove_no_row_is_missed


def refuse_to_wait(*_: object) -> None:
    torch.cuda.set_sync_debug_mode("error")


def allow_to_wait(*_: object) -> None:
    torch.cuda.set_sync_debug_mode("default")


def check(case: Case) -> None:
    """With hooks around the tracker's own, in which every wait is an error."""
    around = (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    handles = [register(refuse_to_wait) for register in around]
    run = Run(case, case.build(device="cuda"))
    handles += [register(allow_to_wait) for register in around]
    prove_no_row_is_missed(run)
    for handle in handles:
        handle.remove()


def check_graph_capture() -> None:
    """A replayed step runs no hook: its table must be whole, again and again."""
    module = nn.Embedding(100, 4, device="cuda")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    (table,) = find_tables({"": module}, [optimizer])
    tracker = Tracker([table], [optimizer])
    module.weight.grad = torch.ones_like(module.weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for kind in (Kind.FULL, Kind.INCREMENTAL, Kind.INCREMENTAL):
        graph.replay()
        tracker.begin(kind)
        assert tracker.touched(table, Since.LAST).whole
        tracker.committed(kind)
    tracker.close()


def main() -> None:
    warnings.simplefilter("ignore")
    cases = [case for case in CASES if case.rule.depth == "deep" or case.rule.row_local]
    refused = 0
    for case in cases:
        try:
            check(case)
        except Exception as error:
            if "fused=True" not in str(error):
                raise AssertionError(f"{case.name}: {error}") from error
            refused += 1  # by torch: not every optimizer is fused on every device
    check_graph_capture()
    print(f"{len(cases) - refused} cases passed on {torch.cuda.get_device_name()}, {refused} refused by torch")


if __name__ == "__main__":
    main()
