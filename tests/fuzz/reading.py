"""Reads a run in every way there is, and compares what comes back with the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.checkpoint.chain import Chain, Head
from holdfast.checkpoint.follow.arena import Arena
from holdfast.checkpoint.follow.keys import Keys
from holdfast.checkpoint.follow.path import TableChanges
from holdfast.checkpoint.follow.staging import stage_rows
from holdfast.checkpoint.lookup import lookup_rows
from holdfast.checkpoint.outlines import plan_checkpoint
from holdfast.checkpoint.partial import newest_entries, plan_newest
from holdfast.checkpoint.plan import RestorePlan, TablePlan
from holdfast.checkpoint.read import VerifiedReader
from holdfast.checkpoint.restore import read_state, restore_rows
from holdfast.errors import HoldfastError, ModelMismatch
from holdfast.format.dtypes import torch_dtype
from holdfast.format.tree import encode_tree
from holdfast.run import Run
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
            raise AssertionError(f"a verification found nothing, but a reader: {self.refused}")


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
    problems = Run(run.store, runtime=AT_ONCE).verify()
    return Verdict(refused=refused, problems=[f"{each.object_name}: {each.what}" for each in problems])


def _reads(run: SampleRun, head: Head, chance: random.Random) -> Iterator[Callable[[], None]]:
    known = [entry.info.id for entry in head.entries if entry.info.id in run.rows]
    for checkpoint in {known[-1], chance.choice(known)} if known else ():
        yield lambda checkpoint=checkpoint: _restore(run, head, checkpoint)  # type: ignore[misc]
        yield lambda checkpoint=checkpoint: _look_up(run, head, checkpoint, chance)  # type: ignore[misc]
        yield lambda checkpoint=checkpoint: _read_state(run, head, checkpoint)  # type: ignore[misc]
    if known and chance.random() < 0.2:
        yield lambda: _follow(run, head, known[-1])
    if run.newest:
        yield lambda: _recover(run, head)


def _plans(run: SampleRun, head: Head, checkpoint: str) -> tuple[VerifiedReader, dict[str, TablePlan]]:
    reader = VerifiedReader(run.store, runtime=AT_ONCE)
    plans = plan_checkpoint(reader, head, checkpoint)
    RestorePlan.of(head.by_id[checkpoint].info, plans)
    for table, columns in run.rows[checkpoint].items():
        if table not in plans or _shapes(plans[table]) != {name: _shape(rows) for name, rows in columns.items()}:
            raise ModelMismatch(table)
    return reader, plans


def _shapes(plan: TablePlan) -> dict[str, tuple[object, ...]]:
    return {c.name: (torch_dtype(c.dtype), plan.spec.rows, *c.row_shape) for c in plan.spec.columns}


def _shape(rows: Tensor) -> tuple[object, ...]:
    return (rows.dtype, *rows.shape)


def _restore(run: SampleRun, head: Head, checkpoint: str) -> None:
    reader, plans = _plans(run, head, checkpoint)
    truth = run.rows[checkpoint]
    targets = {table: {name: torch.full_like(rows, 9.0) for name, rows in truth[table].items()} for table in truth}
    restore_rows(reader, [(plans[table], targets[table]) for table in truth])
    _compare(targets, truth, "restore")


def _look_up(run: SampleRun, head: Head, checkpoint: str, chance: random.Random) -> None:
    reader, plans = _plans(run, head, checkpoint)
    for table, truth in run.rows[checkpoint].items():
        rows = len(truth["weight"])
        ids = torch.tensor(sorted(chance.choices(range(rows), k=chance.choice([2, rows]))))
        found = lookup_rows(reader, plans[table], ids)
        _compare({table: found}, {table: {name: column[ids] for name, column in truth.items()}}, "lookup")


def _follow(run: SampleRun, head: Head, checkpoint: str) -> None:
    """As a follower that holds the baseline."""
    reader, plans = _plans(run, head, checkpoint)
    with Arena(2**20, None) as arena:
        changes = [TableChanges.above(plan, len(plan.generations), 0) for plan in plans.values()]
        found = {name: {"weight": torch.full_like(rows["weight"], 9.0)} for name, rows in run.rows[checkpoint].items()}
        for staged in stage_rows(reader, changes, arena, Keys(keep=False)):
            staged.write(found[staged.table]["weight"])
    _compare(found, {name: {"weight": rows["weight"]} for name, rows in run.rows[checkpoint].items()}, "follower")


def _recover(run: SampleRun, head: Head) -> None:
    """Each row as some save since the newest checkpoint had it."""
    reader = VerifiedReader(run.store, runtime=AT_ONCE)
    plans = plan_newest(reader, head, newest_entries(head))
    for table, possible in run.newest.items():
        if table not in plans or plans[table].spec.rows != len(possible[0]):
            raise ModelMismatch(table)
        found = lookup_rows(reader, plans[table], torch.arange(len(possible[0])))["weight"]
        one_of = torch.stack([(found.view(torch.int32) == each.view(torch.int32)).all(1) for each in possible])
        if not one_of.any(0).all():
            raise WrongRow(f"partial recovery: row {int(torch.nonzero(~one_of.any(0))[0])} of {table}")


def _read_state(run: SampleRun, head: Head, checkpoint: str) -> None:
    reader = VerifiedReader(run.store, runtime=AT_ONCE)
    part = next(part for part in reader.parts(head.by_id[checkpoint]) if part.rank == 0)
    found, truth = encode_tree(read_state(reader, part)), encode_tree(run.states[checkpoint])
    same = len(found.tensors) == len(truth.tensors) and all(map(_equal, found.tensors, truth.tensors))
    if found.skeleton != truth.skeleton or not same:
        raise WrongRow(f"state of {checkpoint}")


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
