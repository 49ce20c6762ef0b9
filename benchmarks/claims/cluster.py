"""What tables on servers cost a step, how it scales, and how long a server's death takes.

The training is a DLRM with 26 tables shaped like Criteo's and 1.1 million other parameters, all on servers, by
Adagrad, in processes of this machine over loopback, which is not encrypted. Workers have a GPU where there is one.
Parts can be run by themselves: ``python -m benchmarks.claims.cluster PART --scale full``. Those that need a core for
each of seven processes are left out on smaller machines, unless they are named.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.claims._cluster_clock import Times
from benchmarks.claims._cluster_duel import Rival, Turns, duel, scaling_figures
from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._cluster_pause import pause_s
from benchmarks.claims._cluster_runs import in_process, on_servers
from benchmarks.claims._parity_rivals import NOTHING
from benchmarks.claims._parts import Found, command, job_figures, measured
from benchmarks.report import Figure, Report, Table
from holdfast.policy import Full, Partial

CORES = 8  # that seven processes need
SERVERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    job: JobPlan
    growth: JobPlan  # with a small model, so that rows are most of the work
    pause: JobPlan
    pause_servers: int
    kills: int
    rounds: int  # of the same
    turns: Turns  # of jobs with one worker and with two
    is_short: bool = False  # without what takes time for one more figure


def _job(*, rows: int, warm_up: int, steps: int, dim: int = 64, batch_size: int = 2048) -> JobPlan:
    batches = max(4, min(32, steps // 3))
    plan = JobPlan(folder="", rows=rows, dim=dim, batch_size=batch_size, warm_up=warm_up, steps=steps)
    return replace(plan, batches=batches)


def _light(job: JobPlan) -> JobPlan:
    return replace(job, bottom=(64,), top=(64,))


def _endless(*, rows: int, dim: int = 64, batch_size: int = 2048) -> JobPlan:
    return replace(_light(_job(rows=rows, warm_up=1, steps=1, dim=dim, batch_size=batch_size)), is_endless=True)


PLANS = {
    "tiny": Plan(
        job=_light(_job(rows=4000, warm_up=3, steps=5, dim=8, batch_size=64)),
        growth=_light(_job(rows=4000, warm_up=3, steps=5, dim=8, batch_size=64)),
        pause=_endless(rows=4000, dim=8, batch_size=64),
        pause_servers=2,
        kills=1,
        rounds=1,
        turns=Turns(rounds=2, slice_s=0.4),
    ),
    "small": Plan(
        job=_job(rows=400_000, warm_up=4, steps=16, batch_size=512),
        growth=_light(_job(rows=100_000, warm_up=10, steps=30, batch_size=1024)),
        pause=_endless(rows=1_000_000, batch_size=512),
        pause_servers=8,
        kills=1,
        rounds=1,
        turns=Turns(rounds=3, slice_s=0.8),
        is_short=True,
    ),
    "full": Plan(
        job=_job(rows=4_000_000, warm_up=100, steps=300),
        growth=_light(_job(rows=400_000, warm_up=50, steps=300)),
        pause=_endless(rows=12_000_000),  # 6 GB: reading them is most of what takes time
        pause_servers=8,
        kills=3,
        rounds=3,
        turns=Turns(rounds=30, slice_s=0.5, starts=2),
    ),
}


def throughput(plan: Plan) -> Found:
    """Samples a second with one and two workers, in turns: a shared machine is slower at one time than at another."""
    rivals = {f"{workers}": Rival(protection=NOTHING, workers=workers) for workers in (1, 2)}
    found = duel(replace(plan.job, warm_up=20), rivals, plan.turns, servers=SERVERS)
    one, two = (found[name] for name in rivals)
    return Found(
        figures={
            "samples_per_s_1_worker": plan.job.batch_size * one.rate,
            "samples_per_s_2_workers": plan.job.batch_size * two.rate,
            **scaling_figures(one, two),
        }
    )


def by_ray(plan: Plan) -> Found:
    """The same servers behind sockets, and behind calls of actors, in turns."""
    if importlib.util.find_spec("ray") is None:
        return Found(figures={"over_ray_actor_calls_skipped": "Ray is not installed"})
    ours, theirs = [], []
    for _ in range(plan.rounds):
        theirs.append(in_process(plan.job, "ray", servers=SERVERS).samples_per_s)
        ours.append(on_servers(plan.job, servers=SERVERS)[0].samples_per_s)
    figures = {
        "samples_per_s_by_ray": max(theirs),
        "samples_per_s_beside_ray": max(ours),
        "over_ray_actor_calls": max(ours) / max(theirs),
    }
    return Found(figures=figures)


def step(plan: Plan) -> Found:
    """A step with servers over the same with tables in the process, and where its time goes."""
    by_torch, by_exchange, by_servers = [], [], []
    for _ in range(plan.rounds):
        by_torch.append(in_process(plan.job, "torch").quick_s)
        by_exchange.append(in_process(plan.job, "exchange", servers=4).quick_s)
        by_servers += on_servers(replace(plan.job, traced=True), servers=4)
    quickest = min(by_servers, key=lambda each: each.quick_s)
    torch_s, exchange_s, cluster_s = min(by_torch), min(by_exchange), quickest.quick_s
    figures: dict[str, Figure] = {
        "local_torch_step_ms": 1e3 * torch_s,
        "local_exchange_step_ms": 1e3 * exchange_s,
        "cluster_step_ms": 1e3 * cluster_s,
        "cluster_over_local_step": cluster_s / torch_s,
        "cluster_over_local_exchange_step": cluster_s / exchange_s,
        "server_cpu_us_per_step": 1e6 * min(each.server_cpu_s for each in by_servers),
    }
    return Found(figures=figures, tables=[_where_time_goes(quickest.step_s, quickest.spans_s)])


def pause(plan: Plan) -> Found:
    """Death to full speed: one server's rows, or everyone's."""
    partial, full = (
        pause_s(plan.pause, strategy, servers=plan.pause_servers, kills=plan.kills)
        for strategy in (Partial(priority=None), Full())
    )
    return Found(
        figures={
            "partial_pause_s": partial,
            "full_pause_s": full,
            "partial_pause_over_full_pause": partial / full,
            "pause_model_bytes": plan.pause.rows * plan.pause.dim * 4 * 2,  # Adagrad's sums as well
        }
    )


def growth(plan: Plan) -> Found:
    """Ten times the rows, and four times the servers, with the same pulls."""
    jobs = {"small": (plan.growth, 2), "large": (replace(plan.growth, spread=10), 2)}
    if not plan.is_short:
        jobs["many"] = (plan.growth, 8)
    found: dict[str, list[Times]] = {name: [] for name in jobs}
    for _ in range(plan.rounds):
        for name, (job, servers) in jobs.items():
            found[name] += on_servers(job, servers=servers)
    step_s = {name: min(each.quick_s for each in times) for name, times in found.items()}
    cpu_s = {name: min(each.server_cpu_s for each in times) for name, times in found.items()}
    figures: dict[str, Figure] = {
        "growth_rows": plan.growth.rows,
        "growth_step_ms": 1e3 * step_s["small"],
        "growth_server_cpu_us": 1e6 * cpu_s["small"],
        "step_time_growth": step_s["large"] / step_s["small"],
        "server_cpu_growth": cpu_s["large"] / cpu_s["small"],
    }
    if "many" in jobs:
        figures["step_time_8_over_2_servers"] = step_s["many"] / step_s["small"]
        figures["server_cpu_8_over_2_servers"] = cpu_s["many"] / cpu_s["small"]
    return Found(figures=figures)


PARTS: Mapping[str, Callable[[Plan], Found]] = {
    "throughput": throughput,
    "ray": by_ray,
    "step": step,
    "pause": pause,
    "growth": growth,
}
_LARGE = {"throughput", "ray"}


def run(scale: str, parts: Sequence[str] = ()) -> Report:
    """All parts that the machine is large enough for, or those named."""
    cores = os.cpu_count() or 1
    wanted = parts or [name for name in PARTS if name not in _LARGE or cores >= CORES]
    plan = PLANS[scale]
    found = measured(PARTS, wanted, plan)
    figures = dict(found.figures)
    if not parts:
        figures |= {f"{name}_skipped": f"needs {CORES} cores" for name in PARTS if name not in wanted}
    return Report(
        title="Training with tables on servers",
        tables=found.tables,
        figures=figures | job_figures(plan.job),
    )


def _where_time_goes(step_s: float, spans_s: Mapping[str, float]) -> Table:
    rest = {"everything else": step_s - sum(spans_s.values())}
    rows = [(name, 1e3 * each, f"{each / step_s:.0%}") for name, each in [*spans_s.items(), *rest.items()]]
    return Table(caption="A worker's step with 4 servers", headers=("what", "ms", "share"), rows=rows)


if __name__ == "__main__":
    command("cluster", PARTS, PLANS, run)
