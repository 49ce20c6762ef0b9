"""The worked example of docs/spec/grid.md: a small grid after each of its saves, as the stored objects tell it."""

from __future__ import annotations

import torch
from torch import nn

import holdfast as hf
from holdfast.checkpoint.grid.bundles import chunks_of
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.checkpoint.read.plan_builder import plan_tables
from holdfast.format.manifest import ALIVE, Manifest, Segment
from holdfast.format.rows import chunk_ids
from holdfast.storage.memory import MemoryStore

ROWS = 8
SAVES = ((1, 2, 3), (3, 4), (2, 4, 5), (1, 6))  # after the baseline


def grid_life() -> str:
    """The grid after each save, then what each checkpoint reads."""
    model = nn.ModuleDict({"emb": nn.Embedding(ROWS, 2)})
    store = MemoryStore()
    told: list[str] = []
    grid = hf.Grid(rule=hf.DeadShare(0), reset=False)
    with hf.Checkpointer(store, model=model, save=hf.Never(), strategy=grid, retention=hf.KeepAll()) as guard:
        guard.step()
        guard.save(wait=True)
        for rows in SAVES:
            guard.step()
            guard.mark("emb", torch.tensor(rows))
            guard.save(wait=True)
            guard.drain(arranged=True)
            told += [f"after step {guard.steps}", *_cohorts(store)]
    return "\n".join([*told, "", *_reads(store), ""])


def _cohorts(store: MemoryStore) -> list[str]:
    run, fetcher = hf.open_run(store), Fetcher(store)
    steps = {entry.info.id: entry.info.step for entry in run.head().entries}
    return [
        f"  {entry.info.step}:  " + _cohort(fetcher, fetcher.parts(entry)[0], steps) for entry in run.head().entries[1:]
    ]


def _cohort(fetcher: Fetcher, manifest: Manifest, steps: dict[str, int]) -> str:
    segments: dict[int, list[int]] = {}
    for placed in chunks_of(manifest, manifest.tables[0]):
        chunk = placed.chunk
        ids = chunk_ids(chunk.rows, chunk.first, chunk.ids, fetcher.chunk(placed.bundle, chunk.place)).tolist()
        for replaced, rows in chunk.segments or (Segment(ALIVE, chunk.rows),):
            segments[replaced] = segments.get(replaced, []) + ids[:rows]
            ids = ids[rows:]
    alive = " ".join(map(str, segments.pop(ALIVE, []))) or "-"
    dead = [f"{steps[manifest.replacing[by]]}: {' '.join(map(str, rows))}" for by, rows in sorted(segments.items())]
    return "  |  ".join([f"{alive:<7}", *reversed(dead)]).rstrip()


def _reads(store: MemoryStore) -> list[str]:
    run, fetcher = hf.open_run(store), Fetcher(store)
    lines = []
    for entry in run.head().entries[1:]:
        history = lineage(run.head(), entry.info.id)
        plan = plan_tables([fetcher.parts(each) for each in history])["emb"].without_baseline()
        rows = [(history[n].info.step, sum(read.rows for read in reads)) for n, reads in enumerate(plan.generations)]
        read = ", ".join(f"{count} of step {step}" for step, count in rows if count)
        lines.append(f"checkpoint {entry.info.step} reads {read}")
    return lines
