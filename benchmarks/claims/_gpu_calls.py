"""Where the host's time of a save on a GPU goes: ``python -m benchmarks.claims._gpu_calls full [way ...]``.

Ways are those of the claim, and ``dcp``; all by default. Prints what calls take, and which steps took long; with
``--profile`` also, of some saves more, the functions that take most of it by Python's profiler, which makes calls two
or three times as long. ``--parts`` times some functions of the call by themselves, which costs each a microsecond.
DCP's staging is measured as the claim does, in a few pairs.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

import holdfast as hf
from benchmarks.claims import gpu
from benchmarks.claims._gpu_loop import Loop, Plan, link_copy_s
from holdfast.checkpoint.snapshot import device_stage, state_plan
from holdfast.checkpoint.snapshot.capture import Capture
from holdfast.checkpoint.snapshot.side_streams import CudaStreams
from holdfast.checkpoint.snapshot.staging import Staging
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.handover import Handover
from holdfast.checkpoint.trainer.outcomes import Outcomes
from holdfast.checkpoint.trainer.saver import Saver
from holdfast.checkpoint.trainer.supervisor import Agents
from holdfast.checkpoint.training.known_state import KnownState
from holdfast.checkpoint.training.rng import Generators

TIMED, PROFILED = 6, 4  # saves; the first one is not counted
STEPS, SAVE_AT = 12, 3
PAIRS, PAIR_STEPS = 2, 25
SLOW_MS = 0.3  # steps that are listed
PARTS = (  # outer ones first
    (Saver, "save"),
    (Agents, "poll"),
    (Saver, "_intended"),
    (Handover, "_take"),
    (Outcomes, "begin"),
    (Tracker, "begin"),
    (Saver, "_captured"),
    (Generators, "now"),
    (Capture, "take"),
    (KnownState, "take_apart"),
    (Staging, "stage"),
    (Staging, "_plans"),
    (state_plan.DeviceState, "copy"),
    (device_stage, "stage_tables"),
    (CudaStreams, "follow"),
    (CudaStreams, "copy"),
    (CudaStreams, "mark"),
    (Handover, "_seal_later"),
    (Outcomes, "taken"),
)


class Stopwatch:
    """Times functions, in microseconds, while they are patched."""

    def __init__(self) -> None:
        self.runs = False
        self._found: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Time every one of ``PARTS``."""
        before = [(owner, name, vars(owner)[name]) for owner, name in PARTS]
        for owner, name, function in before:
            setattr(owner, name, self._timed(f"{owner.__name__.rpartition('.')[2]}.{name}", function))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def tell(self) -> None:
        """Print the median of each."""
        medians = {name: statistics.median(found) for name, found in self._found.items()}
        print("  parts, us: " + ", ".join(f"{name} {found:.0f}" for name, found in medians.items()))

    def _timed(self, name: str, function: Any) -> Any:
        inner = function.__func__ if isinstance(function, classmethod) else function

        def timed(*args: Any, **options: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return inner(*args, **options)
            finally:
                if self.runs:
                    self._found[name].append((time.perf_counter() - started_s) * 1e6)

        return classmethod(timed) if isinstance(function, classmethod) else timed


def main(plan: Plan, device: torch.device, ways: list[str], *, profiled: int, parts: bool = False) -> None:
    """These ways, one after another."""
    started_s = time.perf_counter()
    loop = Loop(plan, device)
    known = gpu.KNOWN
    for name in ways or [*known, gpu.DCP]:
        if name == gpu.DCP:
            few = replace(plan, dcp_pairs=PAIRS, steps=PAIR_STEPS)
            found = gpu.measure_dcp(loop.of(few), few, link_copy_s(list(loop.tables.values())))
            print(f"dcp: {gpu.line(found)}")
        else:
            watch = Stopwatch()
            with watch.patched() if parts else nullcontext():
                _tell(known[name], plan, loop, profiled, watch)
            if parts:
                watch.tell()
        print(f"{time.perf_counter() - started_s:.1f} s", flush=True)


def _tell(way: gpu.Way, plan: Plan, loop: Loop, profiled: int, watch: Stopwatch) -> None:
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
                    watch.runs = 0 < number < TIMED
                    calls.append(round(_ms(guard.save), 2))
                    watch.runs = False
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
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    where = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    times = PROFILED if options.profile else 0
    main(gpu.PLANS[options.scale], where, options.ways, profiled=times, parts=options.parts)
