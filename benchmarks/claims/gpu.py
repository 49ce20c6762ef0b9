"""What a save takes from training on a GPU: how much longer steps with a save in them take, beside the link's time.

A DLRM with tables of 10.2 GB trains on the GPU. Stretches of 50 steps alternate, one with a save of a quarter of all
rows (or of all of them) and one without; the growth is the difference of the two. It is compared with the time that a
raw copy of the same rows to pinned memory takes in the same run. DCP's staging, asynchronous and to pinned memory,
takes its turns in the same loop; it copies whole tables, and the next update waits for it.

``python -m benchmarks.claims.gpu full exact difference_2bit`` measures some ways to save; ``dcp`` is one of them.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.claims._dcp_staging import DcpStaging
from benchmarks.claims._gpu_loop import SAVE_AT, GuardedLoop, Loop, Plan, link_copy_s
from benchmarks.report import Figure, Report, Table
from holdfast.checkpoint.trainer.position import SaveStats
from holdfast.policy import Precision, Strategy

PLANS = {
    "tiny": Plan(
        tables=2, rows=500, batch_size=16, layers=(8,), least_step_s=0.0, pairs=2, steps=6, dcp_pairs=1
    ),
    "small": Plan(
        tables=4, rows=1_000_000, batch_size=16_384, layers=(2048, 2048), least_step_s=0.011,
        pairs=4, steps=20, dcp_pairs=2,
    ),
    "full": Plan(
        tables=4, rows=10_000_000, batch_size=16_384, layers=(2048, 2048), least_step_s=0.011,
        pairs=20, steps=50, dcp_pairs=3,
    ),
}  # fmt: skip
SHARE = 4  # every fourth row is touched
WAY_S = 90.0  # no way takes longer, all its pairs together: the machine is lent
MOST_S = 480.0  # nor does everything together begin another pair after that
SPACE_SHARE = 0.7  # of the free space, that runs may take
BARS = {"2bit": 0.1, "8bit": 0.15, "exact": 0.25, "full_2bit": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to save."""

    name: str
    precision: Precision
    strategy: Strategy
    whole: bool  # all rows
    device_share: float = 5 / 16  # of the tables' bytes, that the device buffer has
    kept_share: float = 0.0  # of the tables' bytes, for a baseline on the device
    pairs: int | None = None  # at most; None: as many as the plan says

    @property
    def figure(self) -> str:
        """What its claim is called."""
        if self.whole:  # gpu_full_..., gpu_sliced_...
            return f"gpu_{self.name.removesuffix('_2bit')}_stall_over_link_copy"
        return f"gpu_stall_over_link_copy_{self.name}"


WAYS = (
    Way(name="2bit", precision=hf.Bits(2), strategy=hf.Consecutive(), whole=False),
    Way(name="8bit", precision=hf.Bits(8), strategy=hf.Consecutive(), whole=False),
    Way(name="full_2bit", precision=hf.Bits(2), strategy=hf.Full(), whole=True),
)
BESIDE = (
    Way(name="sliced_2bit", precision=hf.Bits(2), strategy=hf.Full(), whole=True, device_share=1 / 16, pairs=3),
    Way(
        name="difference_2bit", precision=hf.Bits(2, difference=True), strategy=hf.Consecutive(), whole=False,
        kept_share=0.3, pairs=3,
    ),
)  # fmt: skip
DCP = "dcp"
EXACT = Way(name="exact", precision=hf.Exact(), strategy=hf.Consecutive(), whole=False)  # takes longest: it comes last
KNOWN = {way.name: way for way in (*WAYS, *BESIDE, EXACT)}


@dataclass(slots=True, kw_only=True)
class Found:
    """Pairs of stretches, in seconds."""

    link_s: float
    growth_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    device_waits: int = 0
    sliced: int = 0
    device_bytes: int = 0  # of the device buffer, that a save took

    def count(self, stats: SaveStats) -> None:
        """What a run says of itself."""
        self.device_waits += stats.device_waits
        self.sliced += stats.sliced
        self.device_bytes = stats.drained_bytes // max(1, stats.drained)

    @property
    def over_link(self) -> list[float]:
        """The growths, as parts of the link's time."""
        return [each / self.link_s for each in self.growth_s]


def run(scale: str) -> Report:
    """Measure on the first GPU; without one, say so."""
    if not torch.cuda.is_available():
        why = "there is no CUDA device"
        return Report(title=f"What a save takes from training on a GPU: skipped, {why}", figures={"gpu_skipped": why})
    return measure(PLANS[scale], torch.device("cuda", 0))


def measure(plan: Plan, device: torch.device, names: Sequence[str] = ()) -> Report:
    """Ways to save, one after another, on one model: all of them, or some. Each is told as soon as it is known."""
    since_s = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - since_s:6.1f} s  {text}", flush=True)

    loop = Loop(plan, device)
    figures: dict[str, Figure] = {
        "gpu_step_ms": loop.step_s * 1e3,
        "gpu_batch_size": loop.batch_size,
        "gpu_table_bytes": plan.table_bytes,
        "gpu_busy_share": _busy_share(loop),
    }
    say(f"steps of {loop.step_s * 1e3:.1f} ms with batches of {loop.batch_size}; busy {figures['gpu_busy_share']:.3f}")
    tables = list(loop.tables.values())
    links = {True: link_copy_s(tables), False: link_copy_s([each[: plan.rows // SHARE] for each in tables])}
    say(f"the link needs {links[False] * 1e3:.1f} ms for a quarter, {links[True] * 1e3:.1f} ms for all")
    figures |= {"gpu_link_copy_ms": links[False] * 1e3, "gpu_full_link_copy_ms": links[True] * 1e3}
    found: dict[str, Found] = {}
    for name in names or (*(way.name for way in WAYS), DCP, *(way.name for way in (*BESIDE, EXACT))):
        try:
            if name == DCP:
                found[name] = measure_dcp(loop, plan, links[True])
                figures |= _dcp_figures(found[name])
            else:
                way = KNOWN[name]
                found[name] = _measure(way, loop, plan, links[way.whole], until_s=since_s + MOST_S)
                figures |= _figures(way, found[name])
            say(f"{name}: {line(found[name])}")
        except Exception as error:  # ours, or torch's of whatever version: the others are measured all the same
            traceback.print_exc()
            figures[f"gpu_failed_{name}"] = repr(error)
            say(f"{name} failed: {error!r}")
    claimed = [found[way.name].call_s for way in (*WAYS, EXACT) if way.name in found]
    if claimed:
        figures["gpu_save_call_ms"] = max(map(statistics.median, claimed)) * 1e3
    return Report(title="What a save takes from training on a GPU", tables=[_table(found)], figures=figures)


def _busy_share(loop: Loop) -> float:
    """-1 where the profiler does not work."""
    if loop.device.type != "cuda":
        return 1.0
    try:
        return loop.busy_share()
    except (RuntimeError, AttributeError):
        return -1.0


def _measure(way: Way, loop: Loop, plan: Plan, link_s: float, *, until_s: float) -> Found:
    """Pairs of stretches with and without a save, in as many runs as it takes to have room for their files.

    None begins after ``until_s``.
    """
    found = Found(link_s=link_s)
    until_s = min(until_s, time.perf_counter() + WAY_S)
    wanted = plan.pairs if way.pairs is None else min(way.pairs, plan.pairs)
    while len(found.growth_s) < wanted and not (found.growth_s and time.perf_counter() > until_s):
        with tempfile.TemporaryDirectory(dir=fast_place()) as folder, guarded(way, loop, plan, folder) as guard:
            guard.save(wait=True)
            pairs = min(wanted - len(found.growth_s), _room(way, plan, folder))
            _measure_run(GuardedLoop(guard, loop, plan, touch=None if way.whole else 1 / SHARE), pairs, found, until_s)
            found.count(guard.stats)
    return found


def _measure_run(saves: GuardedLoop, pairs: int, found: Found, until_s: float) -> None:
    """Pairs of one run; the first is not counted."""
    growth = []
    for number in range(pairs + 1):
        growth.append(_growth(saves.with_save, saves.without, saves_first=bool(number % 2)))
        if number and time.perf_counter() > until_s:
            break
    found.growth_s += growth[1:]
    found.call_s += saves.call_s[1:]
    found.drain_s += saves.drain_s
    found.commit_s += saves.commit_s


def guarded(way: Way, loop: Loop, plan: Plan, folder: str) -> hf.Checkpointer:
    """A Checkpointer that saves like this."""
    settings = hf.Settings(
        handle_sigterm=False,
        grace_s=0.0,
        uploads=4,
        buffer_bytes=max(2**22, plan.table_bytes * 5 // 16),
        device_buffer_bytes=max(2**22, int(plan.table_bytes * way.device_share)),
        device_baseline_bytes=max(2**22, int(plan.table_bytes * way.kept_share)) if way.kept_share else 0,
    )
    return hf.Checkpointer(
        Path(folder) / "run",
        model=loop.model,
        optimizer=loop.optimizers,
        precision=way.precision,
        strategy=way.strategy,
        save=hf.Never(),
        retention=hf.KeepLast(1),
        settings=settings,
    )


def measure_dcp(loop: Loop, plan: Plan, link_s: float) -> Found:
    """DCP's stager copies whole tables while the next step computes; the update waits for it."""
    stager = DcpStaging(loop.device)
    tables = {"model": dict(loop.tables)}  # the same tensors each time: it keeps memory for each of them
    calls: list[float] = []
    growth: list[float] = []

    def save() -> None:
        started_s = time.perf_counter()
        staged = stager.stage(tables)
        calls.append(time.perf_counter() - started_s)
        loop.step(before_update=lambda: staged.result() and None)

    try:
        for number in range(plan.dcp_pairs + 1):
            growth.append(
                _growth(
                    lambda: loop.stretch(lambda: None, at=min(SAVE_AT, plan.steps - 1), save=save),
                    lambda: _longer(loop),
                    saves_first=bool(number % 2),
                )
            )
    finally:
        stager.close()
    return Found(link_s=link_s, growth_s=growth[1:], call_s=calls[1:])


def _longer(loop: Loop) -> float:
    """A stretch with the one step more that a save of DCP's has."""
    return loop.stretch(lambda: None, at=0, save=loop.step)


def _growth(with_save: Callable[[], float], without: Callable[[], float], *, saves_first: bool) -> float:
    if saves_first:
        saved_s = with_save()
        return saved_s - without()
    plain_s = without()
    return with_save() - plain_s


def fast_place() -> str:
    """Memory, where the machine has a large folder in it: the disk is not what is measured."""
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if Path(place).is_dir()]
    return max(places, key=lambda place: shutil.disk_usage(place).free)


def _room(way: Way, plan: Plan, folder: str) -> int:
    """How many deltas there is space for beside their baseline: a run keeps all that follow it."""
    if not isinstance(way.precision, hf.Exact):
        return plan.pairs
    delta_bytes = plan.table_bytes * 1.1 / SHARE
    return max(1, int(SPACE_SHARE * shutil.disk_usage(folder).free / delta_bytes) - 1)


def _dcp_figures(found: Found) -> dict[str, Figure]:
    return {
        "dcp_full_stall_over_link_copy": statistics.median(found.over_link),
        "dcp_stage_call_ms": statistics.median(found.call_s) * 1e3,
    }


def _median_ms(seconds: Sequence[float]) -> float:
    """0 where there are none."""
    return statistics.median(seconds) * 1e3 if seconds else 0.0


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _figures(way: Way, found: Found) -> dict[str, Figure]:
    low, middle, high = _quartiles(found.over_link)
    return {
        way.figure: middle,
        f"{way.figure}_q1": low,
        f"{way.figure}_q3": high,
        **({f"{way.figure}_bar": BARS[way.name]} if way.name in BARS else {}),
        f"gpu_growth_ms_{way.name}": statistics.median(found.growth_s) * 1e3,
        f"gpu_save_call_ms_{way.name}": statistics.median(found.call_s) * 1e3,
        f"gpu_drain_ms_{way.name}": _median_ms(found.drain_s),
        f"gpu_committed_after_ms_{way.name}": _median_ms(found.commit_s),
        f"gpu_device_waits_{way.name}": found.device_waits,  # its baseline is one, where all rows do not fit
        f"gpu_sliced_{way.name}": found.sliced,
        f"gpu_device_bytes_{way.name}": found.device_bytes,
        f"gpu_pairs_{way.name}": len(found.growth_s),
    }


def line(found: Found) -> str:
    """What was found, in a line."""
    low, middle, high = _quartiles(found.over_link)
    call_ms = [each * 1e3 for each in _quartiles(found.call_s)]
    return (
        f"{middle:.3f} ({low:.3f} to {high:.3f}) of the link's time in {len(found.growth_s)} pairs; the call takes "
        f"{call_ms[1]:.2f} ms ({call_ms[0]:.2f} to {call_ms[2]:.2f}); {found.device_waits} waits, {found.sliced} in "
        f"slices, drained in {_median_ms(found.drain_s):.0f} ms, {found.device_bytes / 2**20:.0f} MiB on the device"
    )


def _table(found: Mapping[str, Found]) -> Table:
    rows = []
    for name, each in found.items():
        low, middle, high = _quartiles(each.over_link)
        growth_ms = statistics.median(each.growth_s) * 1e3
        rows.append(
            (name, len(each.growth_s), each.link_s * 1e3, growth_ms, f"{middle:.3f} ({low:.3f} to {high:.3f})",
             statistics.median(each.call_s) * 1e3, _median_ms(each.drain_s), BARS.get(name, "")),
        )  # fmt: skip
    headers = ("way", "pairs", "link, ms", "growth, ms", "growth / link (quartiles)", "call, ms", "drain, ms", "bar")
    return Table(caption="Steps with a save, less the same without", headers=headers, rows=rows)


if __name__ == "__main__":
    report = measure(PLANS[sys.argv[1]], torch.device("cuda", 0), sys.argv[2:])
    print("\n".join(f"{name}  {value}" for name, value in report.figures.items()))
