"""Compares what a tracker says with what really changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.tables import Table, find_tables
from holdfast.types import Kind, Since
from tests.checkpoint.track.tracker_cases import Case, Training


class Copy:
    """Every row and slot of the tables at one moment."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.columns = {table.name: columns_of(table) for table in tables}

    def changed(self, table: Table) -> set[int]:
        """The rows whose weights or slots are no longer the same, bit for bit."""
        before, now = self.columns[table.name], columns_of(table)
        if before.keys() != now.keys():
            return set(range(table.rows))
        differs = torch.zeros(table.rows, dtype=torch.bool, device=table.parameter.device)
        for name, column in now.items():
            differs |= (as_bytes(column) != as_bytes(before[name])).any(dim=1)
        return set(differs.nonzero().flatten().tolist())


def columns_of(table: Table) -> dict[str, Tensor]:
    tensors = {"weight": table.parameter, **table.slots()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def as_bytes(column: Tensor) -> Tensor:
    return column.reshape(column.shape[0], -1).contiguous().view(torch.uint8)


def touched(tracker: Tracker, table: Table, since: Since) -> set[int]:
    """The tracker's answer, asked for in pieces that do not end at word borders."""
    answer = tracker.touched(table, since)
    ids: list[int] = []
    for start in range(0, table.rows, 77):
        stop = min(start + 77, table.rows)
        piece = answer.ids(start, stop).tolist()
        assert len(piece) == answer.count(start, stop)
        ids += piece
    assert ids == sorted(set(ids))
    return set(ids)


class Run:
    """A case in training under a tracker; every ``save`` proves that no changed row is missing from it."""

    def __init__(self, case: Case, training: Training | None = None) -> None:
        self.case = case
        self.training = training or case.build()
        self.tables = find_tables({"": self.training.model}, self.training.optimizers)
        self.tracker = Tracker(self.tables, self.training.optimizers)
        self.number = 0

    def train(self, batches: int) -> None:
        for _ in range(batches):
            self.training.train(self.number, self.tracker.mark)
            self.number += 1

    def save_baseline(self) -> None:
        self.tracker.begin(Kind.FULL)
        assert all(self.tracker.touched(table, Since.LAST).whole for table in self.tables)
        self.baseline = self.last = Copy(self.tables)
        self.tracker.committed(Kind.FULL)

    def save_delta(self, *, commit: bool) -> None:
        self.tracker.begin(Kind.INCREMENTAL)
        for table in self.tables:
            last, since_baseline = (touched(self.tracker, table, since) for since in (Since.LAST, Since.BASELINE))
            assert self.last.changed(table) <= last
            assert self.baseline.changed(table) <= since_baseline
            assert last <= since_baseline
            if self.case.gives_deltas:
                assert len(since_baseline) < table.rows / 2
        if commit:
            self.last = Copy(self.tables)
            self.tracker.committed(Kind.INCREMENTAL)
        else:
            self.tracker.failed(Kind.INCREMENTAL)


def prove_no_row_is_missed(run: Run) -> None:
    """A baseline after the first steps, then deltas: in the middle of an accumulation, failed, committed, empty."""
    run.train(2)
    run.save_baseline()
    run.train(1)
    run.save_delta(commit=True)
    run.train(1)
    run.save_delta(commit=False)
    run.train(2)
    run.save_delta(commit=True)
    run.save_delta(commit=True)
    run.tracker.close()
