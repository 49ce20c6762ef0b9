"""What parity costs a step, beside its rivals, and what a server's death costs with it.

The training is the cluster benchmark's: a DLRM with 26 tables shaped like Criteo's, by Adagrad, on five servers with
one parity for every four rows; at a small scale, on three with one for every two. What is compared runs at the same
time, in processes of its own, and trains in turns: a slice of time each. Parts can be run by themselves:
``python -m benchmarks.claims.parity PART --scale full``. Those that need a core for each of seven processes are left
out on smaller machines, unless they are named, and ``links`` everywhere: it needs the right to make a network
namespace, and the system's ``unshare``, ``ip`` and ``tc``. With ``--profile FOLDER``, servers write there what they do
while rows come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.claims._cluster_duel import Ratio, Result, Rival, Turns, duel, overhead, scaling_figures
from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._cluster_pause import pause_s
from benchmarks.claims._parity_counts import count, moved_bytes
from benchmarks.claims._parity_floor import wire_floor
from benchmarks.claims._parity_links import rebuild_on_links
from benchmarks.claims._parity_recovery import rebuild
from benchmarks.claims._parity_rivals import ALL, COPIES, GRADIENTS, NOTHING, PARITY
from benchmarks.claims._parts import Found, command, job_figures, measured
from benchmarks.report import Figure, Report, Table
from holdfast.cluster.arguments import PROTECTED_PUSHES
from holdfast.cluster.parity.layout import LARGE_BLOCK_BYTES
from holdfast.policy import Full, Partial
from holdfast.policy.parity import FAST, GENTLE

CORES = 8  # that seven processes need
_BURNT = "burnt"  # the rival whose cores others use as well
_FLOORS = 2  # measured, of which the lower counts
CHECKPOINTS_S = 30 * 60.0  # between two of them, in the paper's comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    job: JobPlan
    recovery: JobPlan
    turns: Turns
    kills: int
    workers: Sequence[int] = (1, 2)
    rivals: Sequence[str] = ALL
    link_bytes_per_s: int = 312_500_000  # 2.5 Gbit/s: two cores keep up with five servers
    profile: Path | None = None  # a folder: where servers write down what they do during a rebuild

    @property
    def servers(self) -> int:
        """As few as have room for a parity."""
        return self.job.data + 1


def _job(*, rows: int, dim: int = 64, batch_size: int = 2048, warm_up: int = 20) -> JobPlan:
    return JobPlan(
        folder="", rows=rows, dim=dim, batch_size=batch_size, warm_up=warm_up, steps=1, batches=16, is_endless=True
    )


def _light(job: JobPlan) -> JobPlan:
    """With a small model, and three servers: what two cores can run."""
    return replace(job, bottom=(64,), top=(64,), data=2)


PLANS = {
    "tiny": Plan(
        job=_light(_job(rows=4000, dim=8, batch_size=64, warm_up=3)),
        recovery=_light(_job(rows=4000, dim=8, batch_size=64, warm_up=1)),
        turns=Turns(rounds=2, slice_s=0.4),
        kills=1,
        rivals=(NOTHING, PARITY),
    ),
    "small": Plan(
        job=_light(_job(rows=200_000, dim=16, batch_size=256, warm_up=5)),
        recovery=_light(_job(rows=200_000, dim=16, batch_size=256, warm_up=1)),
        turns=Turns(rounds=5, slice_s=0.6),
        workers=(1,),
        kills=1,
        rivals=(NOTHING, PARITY),
    ),
    "full": Plan(
        job=_job(rows=4_000_000),
        recovery=_job(rows=4_000_000, warm_up=1),
        turns=Turns(rounds=20, slice_s=0.5, starts=4),
        kills=1,
    ),
}


def steps(plan: Plan) -> Found:
    """What parity costs a step, with one worker and with two, which keep servers busier; and what the second gains."""
    rivals = {
        _label(name, workers): Rival(protection=name, workers=workers)
        for workers in plan.workers
        for name in (NOTHING, PARITY)
    }
    found = duel(plan.job, rivals, plan.turns, servers=plan.servers)
    figures: dict[str, Figure] = {}
    for workers in plan.workers:
        base = found[_label(NOTHING, workers)]
        figures |= _overhead_figures(_label("", workers), found[_label(PARITY, workers)], base)
        figures[f"samples_per_s{_label('', workers)}"] = plan.job.batch_size * base.rate
    if 2 in plan.workers:
        one, two = (found[_label(NOTHING, workers)] for workers in (1, 2))
        figures |= scaling_figures(one, two)
    return Found(figures=figures, tables=[_table(plan, found)])


def contention(plan: Plan) -> Found:
    """What a job without parity loses to processes that use as much time as parity does, and that nobody waits for."""
    figures: dict[str, Figure] = {}
    for workers in plan.workers:
        pair = {name: Rival(protection=name, workers=workers) for name in (NOTHING, PARITY)}
        found = duel(
            plan.job, pair, replace(plan.turns, starts=1, rounds=max(2, plan.turns.rounds // 8)), servers=plan.servers
        )
        more_s = found[PARITY].server_cpu_s - found[NOTHING].server_cpu_s
        burnt = max(0.0, more_s * found[PARITY].rate)
        pair[_BURNT] = Rival(protection=NOTHING, workers=workers, burnt_cores=burnt)
        found = duel(plan.job, pair, replace(plan.turns, starts=1), servers=plan.servers)
        suffix, ratio = _label("", workers), Ratio.of(found[_BURNT], found[NOTHING])
        figures |= {
            f"burnt_cores{suffix}": burnt,
            f"contention_overhead{suffix}": 1 / ratio.value - 1,
            f"contention_overhead_standard_error{suffix}": ratio.standard_error,
            f"parity_overhead_beside_contention{suffix}": overhead(found[PARITY], found[NOTHING]),
        }
    return Found(figures=figures)


def rivals(plan: Plan) -> Found:
    """What other kinds of protection cost, with one worker."""
    found = duel(plan.job, {name: Rival(protection=name) for name in plan.rivals}, plan.turns, servers=plan.servers)
    labels = {PARITY: "parity_overhead_beside_rivals", GRADIENTS: "gradient_propagation_overhead"}
    labels[COPIES] = "replication_overhead"
    figures = {labels[name]: overhead(each, found[NOTHING]) for name, each in found.items() if name != NOTHING}
    return Found(figures=figures, tables=[_table(plan, found)])


def linear(plan: Plan) -> Found:
    """What parity costs a model that does little else than read and update rows."""
    job = replace(plan.job, is_linear=True)
    found = duel(job, {name: Rival(protection=name) for name in (NOTHING, PARITY)}, plan.turns, servers=plan.servers)
    return Found(figures=_overhead_figures("_linear", found[PARITY], found[NOTHING]), tables=[_table(plan, found)])


def counts(plan: Plan) -> Found:
    """Memory, and how evenly updates fall on servers."""
    found = count(plan.job, servers=plan.servers)
    return Found(
        figures={
            "updates_max_over_min": found.updates,
            "updates_max_over_min_with_parity": found.updates_with_parity,
            "memory_overhead": found.parity_bytes / found.model_bytes,
            "model_bytes": found.model_bytes,
            "parity_bytes": found.parity_bytes,
            "spare_bytes": found.largest_server_bytes,
            "unstable_push_bytes_per_worker": found.unstable_bytes,
            "difference_bytes_per_push_alone": found.single_bytes,
            "difference_bytes_per_push": found.together_bytes,
        }
    )


def gentle(plan: Plan) -> Found:
    """A server dies, and training keeps its pace meanwhile."""
    found = rebuild(plan.recovery, servers=plan.servers, kills=plan.kills, pace=GENTLE, profile=plan.profile)
    return Found(
        figures={
            "throughput_in_recovery": found.throughput,
            "longest_pause_s": found.longest_pause_s,
            "gentle_rebuild_s": found.took_s,
            "gentle_heard_s": found.heard_s,
        }
    )


def fast(plan: Plan) -> Found:
    """A server dies, and redundancy is whole as soon as can be."""
    streams = moved_bytes(plan.recovery, servers=plan.servers, lost=1)
    floors = [wire_floor(streams, block_bytes=LARGE_BLOCK_BYTES) for _ in range(_FLOORS)]
    floor = min(floors, key=lambda each: each.took_s)
    found = rebuild(plan.recovery, servers=plan.servers, kills=plan.kills, pace=FAST, profile=plan.profile)
    return Found(
        figures={
            "fast_rebuild_s": found.took_s,
            "fast_heard_s": found.heard_s,
            "fast_server_cpu_s": found.cpu_s,
            "wire_floor_s": floor.took_s,
            "wire_floor_cpu_s": floor.cpu_s,
            "rebuild_over_wire_floor": found.took_s / floor.took_s,
            "rebuild_bytes": sum(streams.values()),
            "fast_throughput_in_recovery": found.throughput,
            "fast_longest_pause_s": found.longest_pause_s,
        }
    )


def links(plan: Plan) -> Found:
    """The same where servers have a network card each, which is slower than what processors make of its bytes."""
    found = rebuild_on_links(plan.recovery, servers=plan.servers, kills=plan.kills, bytes_per_s=plan.link_bytes_per_s)
    return Found(
        figures={
            "link_rebuild_s": found.rebuild_s,
            "link_heard_s": found.heard_s,
            "link_floor_s": found.floor_s,
            "rebuild_over_link_floor": found.rebuild_s / found.floor_s,
            "link_bytes_per_s": plan.link_bytes_per_s,
        }
    )


def unspared(plan: Plan) -> Found:
    """A server dies, and no spare is ready: workers wait until another process has started.

    Hosts could answer pulls meanwhile, by decoding rows. A worker may then take as many steps more as it has credits
    for pushes that nobody applies: what that would save is the time of these.
    """
    found = rebuild(plan.recovery, servers=plan.servers, kills=1, pace=FAST, spares=0)
    saved_s = PROTECTED_PUSHES / found.steps_per_s
    return Found(
        figures={
            "longest_pause_without_spare_s": found.longest_pause_s,
            "degraded_reads_would_save_s": saved_s,
            "degraded_reads_would_save_share": saved_s / found.longest_pause_s,
            "steps_per_s": found.steps_per_s,
        }
    )


def checkpoints(plan: Plan) -> Found:
    """The same death without parity: partial and full recovery."""
    partial, full = (
        pause_s(plan.recovery, strategy, servers=plan.servers, kills=1) for strategy in (Partial(priority=None), Full())
    )
    return Found(figures={"partial_recovery_s": partial, "full_recovery_s": full})


PARTS: Mapping[str, Callable[[Plan], Found]] = {
    "steps": steps,
    "contention": contention,
    "rivals": rivals,
    "linear": linear,
    "counts": counts,
    "gentle": gentle,
    "fast": fast,
    "links": links,
    "unspared": unspared,
    "checkpoints": checkpoints,
}
_LARGE = {"contention", "rivals", "fast", "unspared", "checkpoints"}
_NAMED = {"links"}  # only if asked for: it needs a network namespace
_SMALL = {"linear"}  # where servers and workers have a core each, it says nothing that the others do not


def run(scale: str, parts: Sequence[str] = (), profile: Path | None = None, kills: int | None = None) -> Report:
    """All parts that suit the machine, or those named."""
    plan = replace(PLANS[scale], profile=profile, kills=kills or PLANS[scale].kills)
    is_large = (os.cpu_count() or 1) >= CORES
    wanted = parts or [name for name in PARTS if name not in _NAMED | (_SMALL if is_large else _LARGE)]
    found = measured(PARTS, wanted, plan)
    figures = dict(found.figures)
    if not parts and not is_large:
        figures |= {f"{name}_skipped": f"needs {CORES} cores" for name in PARTS if name in _LARGE}
    return Report(
        title="Parity, and what it spares",
        tables=found.tables,
        figures=_worst(figures)
        | figures
        | _beside_checkpoints(figures)
        | _gentle_over_fast(figures)
        | job_figures(plan.job)
        | {"job_data_per_parity": plan.job.data},
    )


def _label(name: str, workers: int) -> str:
    return f"{name}_{workers}_worker{'s' * (workers > 1)}"


def _overhead_figures(suffix: str, parity: Result, base: Result) -> dict[str, Figure]:
    return {
        f"parity_overhead{suffix}": overhead(parity, base),
        f"parity_overhead_standard_error{suffix}": Ratio.of(parity, base).standard_error,
        f"parity_overhead_rounds{suffix}": sum(map(len, parity.starts)),
        f"worker_wait_us_per_step{suffix}": 1e6 * base.step_wait_s,
        f"worker_wait_us_per_step_with_parity{suffix}": 1e6 * parity.step_wait_s,
        f"worker_cpu_us_per_step{suffix}": 1e6 * base.step_cpu_s,
        f"worker_cpu_us_per_step_with_parity{suffix}": 1e6 * parity.step_cpu_s,
        f"server_cpu_us_per_step{suffix}": 1e6 * base.server_cpu_s,
        f"server_cpu_us_per_step_with_parity{suffix}": 1e6 * parity.server_cpu_s,
    }


def _table(plan: Plan, found: Mapping[str, Result]) -> Table:
    rows = [
        (name.replace("_", " "), plan.job.batch_size * each.rate, 1e6 * each.server_cpu_s, 1e6 * each.step_wait_s)
        for name, each in found.items()
    ]
    caption = f"Slices of {plan.turns.slice_s} s in turns"
    return Table(
        caption=caption, headers=("protection", "samples/s", "server CPU us/step", "worker waits us/step"), rows=rows
    )


def _worst(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """With one worker or two, whichever is more."""
    names = [f"parity_overhead{_label('', workers)}" for workers in (1, 2)]
    measured = [float(figures[name]) for name in names if name in figures]
    return {"parity_overhead": max(measured)} if measured else {}


def _beside_checkpoints(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """A death in the middle between two checkpoints: all go back, and train half of the time between them again."""
    if "full_recovery_s" not in figures or "gentle_rebuild_s" not in figures:
        return {}
    average_s = float(figures["full_recovery_s"]) + CHECKPOINTS_S / 2
    return {"faster_than_checkpoint_average": average_s / float(figures["gentle_rebuild_s"])}


def _gentle_over_fast(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    if "fast_rebuild_s" not in figures or "gentle_rebuild_s" not in figures:
        return {}
    return {"gentle_rebuild_over_fast": float(figures["gentle_rebuild_s"]) / float(figures["fast_rebuild_s"])}


if __name__ == "__main__":
    profile = {"type": Path, "metavar": "FOLDER", "help": "what servers do while rows come back"}
    kills = {"type": int, "metavar": "N", "help": "servers that die, one after the other"}
    command("parity", PARTS, PLANS, run, {"profile": profile, "kills": kills})
