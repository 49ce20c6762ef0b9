"""Reads a run in every way there is, and compares what comes back with the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.follow.arena import Arena
from holdfast.checkpoint.follow.keys import Keys
from holdfast.checkpoint.follow.path import TableChanges
from holdfast.checkpoint.follow.staging import stage_rows
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.table_plan import RestorePlan, TablePlan
from holdfast.checkpoint.restore.partial import newest_entries, plan_newest
from holdfast.checkpoint.restore.row_lookup import lookup_rows
from holdfast.checkpoint.restore.state_tensors import read_state
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.errors import HoldfastError, ModelMismatch
from holdfast.format.dtypes import torch_dtype
from holdfast.format.tree import encode_tree
from holdfast.run import Run
from holdfast.testing.runtime import with_runtime
from tests.fuzz.runs import AT_ONCE, Rows, SampleRun


class WrongRow(AssertionError):
    """What was read is not what was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How reading an edited run went."""

    refused: list[str]  # clean errors
    problems: list[str]  # that a verification found

    def require_agreement(self) -> None:
        """Whatever cannot be read, a verification tells."""
        if self.refused and not self.problems:
            raise AssertionError(f"a verification found nothing, but a read: {self.refused}")


def read_everything(run: SampleRun, chance: random.Random) -> Verdict:
    """Restore, look up, follow and recover; raises WrongRow, or whatever else is no clean error."""
    refused: list[str] = []
    try:
        head = Chain(run.store, runtime=AT_ONCE).head(skip_damaged=True)
        assert head is not None
        for read in _reads(run, head, chance):
            try:
                read()
            except ModelMismatch:
                pass  # another model's: nothing is wrong with it by itself
            except HoldfastError as error:
                refused.append(f"{type(error).__name__}: {error}")
    except HoldfastError as error:
        refused.append(f"{type(error).__name__}: {error}")
    problems = with_runtime(Run, AT_ONCE)(run.store).verify()
    return Verdict(refused=refused, problems=[f"{each.object_name}: {each.what}" for each in problems])


def _reads(run: SampleRun, head: Head, chance: random.Random) -> Iterator[Callable[[], None]]:
    known = [entry.info.id for entry in head.entries if entry.info.id in run.rows]
    for checkpoint in {known[-1], chance.choice(known)} if known else ():
        yield partial(_read_tables, run, head, checkpoint, chance)
        yield partial(_read_state, run, head, checkpoint)
    if run.newest:
        yield partial(_recover, run, head)


def _read_tables(run: SampleRun, head: Head, checkpoint: str, chance: random.Random) -> None:
    fetcher = Fetcher(run.store, runtime=AT_ONCE)
    plans = plan_checkpoint(fetcher, head, checkpoint)
    RestorePlan.of(head.by_id[checkpoint].info, plans)
    truth = run.rows[checkpoint]
    for table, columns in truth.items():
        if table not in plans or _shapes(plans[table]) != {name: _shape(rows) for name, rows in columns.items()}:
            raise ModelMismatch(table)
    ways: list[Callable[[], None]] = [
        partial(_restore, fetcher, plans, truth, chance.choice([1, 1, 1, None])),
        partial(_look_up, fetcher, plans, truth, chance),
    ]
    if chance.random() < 0.2:
        ways.append(partial(_follow, fetcher, plans, truth))
    errors = [error for way in ways if (error := _refusal(way)) is not None]
    if errors:
        raise errors[0]


def _refusal(way: Callable[[], None]) -> HoldfastError | None:
    try:
        way()
    except HoldfastError as error:
        return error
    return None


def _shapes(plan: TablePlan) -> dict[str, tuple[object, ...]]:
    return {c.name: (torch_dtype(c.dtype), plan.spec.rows, *c.row_shape) for c in plan.spec.columns}


def _shape(rows: Tensor) -> tuple[object, ...]:
    return (rows.dtype, *rows.shape)


_Plans = Mapping[str, TablePlan]


def _restore(fetcher: Fetcher, plans: _Plans, truth: Rows, workers: int | None) -> None:
    targets = {table: {name: torch.full_like(rows, 9.0) for name, rows in truth[table].items()} for table in truth}
    restore_rows(fetcher, [(plans[table], targets[table]) for table in truth], workers=workers)
    _compare(targets, truth, "restore")


def _look_up(fetcher: Fetcher, plans: _Plans, truth: Rows, chance: random.Random) -> None:
    for table, columns in truth.items():
        rows = len(columns["weight"])
        ids = torch.tensor(sorted(chance.choices(range(rows), k=chance.choice([2, rows]))))
        found = lookup_rows(fetcher, plans[table], ids)
        _compare({table: found}, {table: {name: column[ids] for name, column in columns.items()}}, "lookup")


def _follow(fetcher: Fetcher, plans: _Plans, truth: Rows) -> None:
    """As a follower that begins."""
    weights = {name: {"weight": columns["weight"]} for name, columns in truth.items()}
    found = {name: {"weight": torch.full_like(columns["weight"], 9.0)} for name, columns in truth.items()}
    with Arena(2**20, None) as arena:
        changes = [TableChanges.above(plans[name], len(plans[name].generations), 0) for name in truth]
        for staged in stage_rows(fetcher, changes, arena, Keys(keep=False)):
            staged.write(found[staged.table]["weight"])
    _compare(found, weights, "follower")


def _recover(run: SampleRun, head: Head) -> None:
    """Each row as some save since the newest checkpoint had it."""
    fetcher = Fetcher(run.store, runtime=AT_ONCE)
    plans = plan_newest(fetcher, head, newest_entries(head))
    for table, possible in run.newest.items():
        if table not in plans or plans[table].spec.rows != len(possible[0]):
            raise ModelMismatch(table)
        found = lookup_rows(fetcher, plans[table], torch.arange(len(possible[0])))["weight"]
        one_of = torch.stack([(found.view(torch.int32) == each.view(torch.int32)).all(1) for each in possible])
        if not one_of.any(0).all():
            raise WrongRow(f"partial recovery: row {int(torch.nonzero(~one_of.any(0))[0])} of {table}")


def _read_state(run: SampleRun, head: Head, checkpoint: str) -> None:
    fetcher = Fetcher(run.store, runtime=AT_ONCE)
    part = next(part for part in fetcher.parts(head.by_id[checkpoint]) if part.rank == 0)
    found, truth = encode_tree(read_state(fetcher, part)), encode_tree(run.states[checkpoint])
    if found.skeleton != truth.skeleton or len(found.tensors) != len(truth.tensors):
        raise WrongRow(f"state of {checkpoint}")
    for ours, theirs in zip(found.tensors, truth.tensors, strict=True):
        if not _equal(ours.reshape(-1), theirs.reshape(-1)):
            raise WrongRow(f"state of {checkpoint}")
        if ours.shape != theirs.shape:
            raise ModelMismatch("a state tensor has as many values in another shape")


def _compare(found: Rows, truth: Rows, how: str) -> None:
    for table, columns in truth.items():
        for name, rows in columns.items():
            if not _equal(found[table][name], rows):
                raise WrongRow(f"{how}: column {name} of {table}")


def _equal(a: Tensor, b: Tensor) -> bool:
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and torch.equal(
        a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)
    )
