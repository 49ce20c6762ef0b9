"""What a save costs after thousands of others: time, bytes of catalogs, the agent's memory and descriptors.

Small saves of a small table, one after another, each waited for. The run lies in a file system in memory where there is
one: what a disk takes to sync does not depend on what was saved before, and would only hide growth. What a save takes
on a disk is measured beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.claims import _agent
from benchmarks.files import object_sizes
from benchmarks.report import Figure, Report, Table
from holdfast.policy import Retention, Strategy

ROWS, DIM, BATCH = 2000, 16, 32
SEED = 11
EARLY = slice(100, 300)  # of the saves; the first ones warm up
LATE = 200
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way to keep checkpoints."""

    name: str
    retention: Retention
    strategy: Strategy | None = None  # None: the retention's own


KEEP_ALL = Case(name="keep_all", retention=hf.KeepAll(), strategy=hf.Consecutive())
KEEP_LAST = Case(name="keep_last", retention=hf.KeepLast(3))
GRID = Case(name="grid", retention=hf.KeepAll())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many saves: in the case that keeps them all, in each of the others, and on a disk."""

    saves: int
    others: int
    on_disk: int


PLANS = {
    "tiny": Plan(saves=12, others=8, on_disk=2),
    "small": Plan(saves=3000, others=600, on_disk=200),
    "full": Plan(saves=3000, others=3000, on_disk=3000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is seen of the agent after a save."""

    cpu_s: float
    memory_bytes: int
    descriptors: int

    @classmethod
    def at(cls, pid: int | None) -> Look:
        """The agent as it is now."""
        return cls(cpu_s=_agent.cpu_s(pid), memory_bytes=_agent.memory_bytes(pid), descriptors=_agent.descriptors(pid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What the saves of one case took."""

    seconds: Sequence[float]
    looks: Sequence[Look]
    catalog_bytes: int
    total_bytes: int

    @property
    def early_s(self) -> float:
        """The median save near the beginning."""
        return statistics.median(self.seconds[self._early])

    @property
    def late_s(self) -> float:
        """The median of the last ones."""
        return statistics.median(self.seconds[-self._count :])

    @property
    def cpu_growth(self) -> float:
        """The agent's CPU time for the last saves, beside that for the early ones."""
        early, late = self.looks[self._early], self.looks[-self._count :]
        return (late[-1].cpu_s - late[0].cpu_s) / max(1e-9, early[-1].cpu_s - early[0].cpu_s)

    @property
    def early(self) -> Look:
        """The agent once it was warm."""
        return self.looks[self._early][-1]

    @property
    def _count(self) -> int:
        return min(LATE, len(self.seconds) // 3)

    @property
    def _early(self) -> slice:
        return EARLY if len(self.seconds) >= 2 * LATE else slice(self._count, 2 * self._count)


def run(scale: str) -> Report:
    plan = PLANS[scale]
    cases = {KEEP_ALL: plan.saves, KEEP_LAST: plan.others, GRID: plan.others}
    found = {case.name: _saved(case, count, _MEMORY) for case, count in cases.items()}
    on_disk = _saved(KEEP_ALL, plan.on_disk, None)
    return Report(title="What many small saves cost", tables=[_table(found)], figures=_figures(found, on_disk))


def _saved(case: Case, count: int, folder: Path | None) -> Saved:
    """Take that many saves, below ``folder`` where there is one."""
    beside = folder if folder is not None and folder.is_dir() else None
    with tempfile.TemporaryDirectory(dir=beside, prefix="holdfast-manysaves-") as path:
        seconds, looks = _save(path, case, count)
        sizes = object_sizes(Path(path))
        listed = [size for file, size in sizes.items() if file.parent.name in ("catalog", "history")]
        return Saved(seconds=seconds, looks=looks, catalog_bytes=sum(listed), total_bytes=sum(sizes.values()))


def _save(path: str, case: Case, count: int) -> tuple[list[float], list[Look]]:
    torch.manual_seed(SEED)
    table = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    seconds, looks = list[float](), list[Look]()
    never = hf.EverySteps(count + 1)
    with hf.Checkpointer(
        path, model=table, optimizer=optimizer, save=never, retention=case.retention, strategy=case.strategy
    ) as guard:
        guard.resume()
        for _ in range(count):
            optimizer.zero_grad()
            table(torch.randint(0, ROWS, (BATCH, 1))).sum().backward()
            optimizer.step()
            guard.step()
            started_s = time.perf_counter()
            guard.save(wait=True)
            seconds.append(time.perf_counter() - started_s)
            looks.append(Look.at(guard.agent_pid))
    return seconds, looks


def _figures(found: dict[str, Saved], on_disk: Saved) -> dict[str, Figure]:
    main = found[KEEP_ALL.name]
    figures: dict[str, Figure] = {"saves": len(main.seconds), **_of_case("", main)}
    for name, saved in found.items():
        if saved is not main:
            figures |= {f"{name}_saves": len(saved.seconds), **_of_case(f"{name}_", saved)}
    return {**figures, "disk_saves": len(on_disk.seconds), "disk_save_ms": 1e3 * statistics.median(on_disk.seconds)}


def _of_case(prefix: str, saved: Saved) -> dict[str, Figure]:
    early, late = saved.early, saved.looks[-1]
    return {
        f"{prefix}save_cost_growth": saved.late_s / saved.early_s,
        f"{prefix}save_ms": 1e3 * saved.late_s,
        f"{prefix}agent_cpu_growth": saved.cpu_growth,
        f"{prefix}catalog_bytes_share": saved.catalog_bytes / saved.total_bytes,
        f"{prefix}agent_rss_growth": late.memory_bytes / max(1, early.memory_bytes),
        f"{prefix}agent_descriptors_growth": late.descriptors / max(1, early.descriptors),
    }


def _table(found: dict[str, Saved]) -> Table:
    rows = [
        (
            name,
            len(saved.seconds),
            f"{1e3 * saved.early_s:.2f}",
            f"{1e3 * saved.late_s:.2f}",
            f"{saved.catalog_bytes / 1e6:.2f} of {saved.total_bytes / 1e6:.1f}",
            f"{saved.early.memory_bytes / 1e6:.1f} → {saved.looks[-1].memory_bytes / 1e6:.1f}",
            f"{saved.early.descriptors} → {saved.looks[-1].descriptors}",
        )
        for name, saved in found.items()
    ]
    headers = ("kept", "saves", "early, ms", "late, ms", "catalogs, MB", "agent, MB", "descriptors")
    return Table(caption="A save, from the call to the commit", headers=headers, rows=rows)
