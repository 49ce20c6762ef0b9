"""Where the host's time of a save on a GPU goes: ``python -m benchmarks.claims._gpu_calls [tiny|small|full]``.

Prints what calls and steps take, and then, of some saves more, the functions that take most of it by Python's profiler,
which makes calls two or three times as long.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time

import torch

import holdfast as hf
from benchmarks.claims import gpu
from benchmarks.claims._gpu_loop import Loop, Plan

TIMED, PROFILED = 6, 4  # saves
STEPS, SAVE_AT = 30, 3
SLOW_MS = 0.3  # steps that are listed


def main(plan: Plan, device: torch.device) -> None:
    """All ways, one after another."""
    loop = Loop(plan, device)
    for way in gpu.WAYS:
        with tempfile.TemporaryDirectory(dir=gpu.fast_place()) as folder, gpu.guarded(way, loop, plan, folder) as guard:
            guard.save(wait=True)
            _tell(way, guard, loop)


def _tell(way: gpu.Way, guard: hf.Checkpointer, loop: Loop) -> None:
    profile, calls, slow = cProfile.Profile(), [], []
    for number in range(TIMED + PROFILED):
        if not way.whole:
            for name, table in loop.tables.items():
                guard.mark(name, torch.randperm(len(table), device=loop.device)[: len(table) // gpu.SHARE])
        for step in range(STEPS):
            loop.step()
            step_ms = _ms(guard.step)
            if step_ms > SLOW_MS and number < TIMED:
                slow.append((number, step, round(step_ms, 2)))
            if step == SAVE_AT:
                if number >= TIMED:
                    profile.enable()
                calls.append(round(_ms(guard.save), 2))
                profile.disable()
        guard.drain()
    print(f"{way.name}: calls, ms: {calls[:TIMED]}, profiled: {calls[TIMED:]}; {guard.stats}")
    print(f"steps over {SLOW_MS} ms: {slow}", flush=True)
    pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("cumtime").print_stats(45)


def _ms(call: object) -> float:
    assert callable(call)
    started_s = time.perf_counter()
    call()
    return (time.perf_counter() - started_s) * 1e3


if __name__ == "__main__":
    where = "cuda:0" if torch.cuda.is_available() else "cpu"
    main(gpu.PLANS[sys.argv[1] if len(sys.argv) > 1 else "full"], torch.device(where))
