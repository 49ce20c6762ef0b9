"""Where the host's time of a save on a GPU goes: ``python -m benchmarks.claims._gpu_calls full [way ...]``.

Ways are those of the claim, and ``dcp``; all by default. Prints what calls take, and which steps took long; with
``--profile`` also, of some saves more, the functions that take most of it by Python's profiler, which makes calls two
or three times as long. DCP's staging is measured as the claim does, in a few pairs.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

import torch

import holdfast as hf
from benchmarks.claims import gpu
from benchmarks.claims._gpu_loop import Loop, Plan, link_copy_s

TIMED, PROFILED = 6, 4  # saves; the first one is not counted
STEPS, SAVE_AT = 12, 3
PAIRS, PAIR_STEPS = 2, 25
SLOW_MS = 0.3  # steps that are listed


def main(plan: Plan, device: torch.device, ways: list[str], *, profiled: int) -> None:
    """These ways, one after another."""
    started_s = time.perf_counter()
    loop = Loop(plan, device)
    known = {way.name: way for way in gpu.WAYS}
    for name in ways or [*known, "dcp"]:
        if name == "dcp":
            few = replace(plan, dcp_pairs=PAIRS, steps=PAIR_STEPS)
            found = gpu.measure_dcp(loop.of(few), few, link_copy_s(list(loop.tables.values())))
            print(f"dcp: {gpu.line(found)}")
        else:
            _tell(known[name], plan, loop, profiled)
        print(f"{time.perf_counter() - started_s:.1f} s", flush=True)


def _tell(way: gpu.Way, plan: Plan, loop: Loop, profiled: int) -> None:
    with tempfile.TemporaryDirectory(dir=gpu.fast_place()) as folder, gpu.guarded(way, loop, plan, folder) as guard:
        guard.save(wait=True)
        profile, calls, slow = cProfile.Profile(), [], []
        for number in range(TIMED + profiled):
            _touch(way, guard, loop)
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
        stats = guard.stats
    print(f"{way.name}: calls, ms: median {statistics.median(calls[1:TIMED])} of {calls[:TIMED]}; {calls[TIMED:]}")
    print(f"  sliced {stats.sliced}, waited for {stats.device_waits}, thrown away {stats.thrown_away}")
    print(f"  steps over {SLOW_MS} ms: {slow}")
    if profiled:
        pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("cumtime").print_stats(45)


def _touch(way: gpu.Way, guard: hf.Checkpointer, loop: Loop) -> None:
    if not way.whole:
        for name, table in loop.tables.items():
            guard.mark(name, torch.randperm(len(table), device=loop.device)[: len(table) // gpu.SHARE])


def _ms(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return (time.perf_counter() - started_s) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=gpu.PLANS)
    parser.add_argument("ways", nargs="*")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    where = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    main(gpu.PLANS[options.scale], where, options.ways, profiled=PROFILED if options.profile else 0)
