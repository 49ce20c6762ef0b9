"""The three sets against plain Python sets."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.checkpoint.track.tensor_sets import tensor_marks
from holdfast.kernels.bit_sets import tensors as sets
from holdfast.types import Since

ROWS = 150
CPU = torch.device("cpu")
IDS = st.lists(st.integers(0, ROWS - 1), max_size=6)


class MarksMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.marks = tensor_marks(ROWS, CPU)
        self.live: set[int] = set()
        self.pending: set[int] = set()
        self.base: set[int] = set()

    @rule(ids=IDS)
    def change(self, ids: list[int]) -> None:
        self.marks.live.add(torch.tensor(ids, dtype=torch.int64))
        self.live |= set(ids)

    @rule(ids=IDS)
    def change_by_dense_gradient(self, ids: list[int]) -> None:
        gradient = torch.zeros(ROWS, 3)
        gradient[ids] = 1.0
        self.marks.live.add_nonzero_rows(gradient)
        self.live |= set(ids)

    @rule()
    def change_all(self) -> None:
        self.marks.live.add_all()
        self.live = set(range(ROWS))

    @rule()
    def begin(self) -> None:
        """Again and again: an outcome that never came loses nothing."""
        self.marks.begin()
        self.pending |= self.live
        self.live = set()

    @rule(full=st.booleans())
    def commit(self, full: bool) -> None:
        self.marks.committed(full=full)
        self.base = set() if full else self.base | self.pending
        self.pending = set()

    @rule(ids=IDS)
    def rebuild(self, ids: list[int]) -> None:
        self.marks.base.add(torch.tensor(ids, dtype=torch.int64))
        self.base |= set(ids)

    @rule()
    def forget(self) -> None:
        self.marks.forget()
        self.live, self.pending, self.base = set(), set(), set()

    @rule(ends=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)))
    def ask_for_a_range(self, ends: tuple[int, int]) -> None:
        start, stop = sorted(ends)
        wanted = sorted(i for i in self.base | self.pending | self.live if start <= i < stop)
        answer = self.marks.touched(Since.BASELINE)
        assert answer.ids(start, stop).tolist() == wanted
        assert answer.count(start, stop) == len(wanted)

    @invariant()
    def every_changed_row_is_touched_and_no_other(self) -> None:
        assert set(self.marks.touched(Since.LAST).ids(0, ROWS).tolist()) == self.pending | self.live
        assert set(self.marks.touched(Since.BASELINE).ids(0, ROWS).tolist()) == self.base | self.pending | self.live

    @invariant()
    def there_are_three_sets_at_most(self) -> None:
        buffers = [rows._bits for rows in (self.marks.live, self.marks.pending, self.marks.base)]
        assert all(bits is None or bits.numel() == sets.set_bytes(ROWS) for bits in buffers)
        assert len({bits.data_ptr() for bits in buffers if bits is not None}) == sum(b is not None for b in buffers)


TestMarks = MarksMachine.TestCase
TestMarks.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_failed_save_leaves_its_rows_for_the_next_one() -> None:
    marks = tensor_marks(ROWS, CPU)
    marks.live.add(torch.tensor([1]))
    marks.begin()
    marks.live.add(torch.tensor([2]))
    marks.begin()
    assert marks.touched(Since.LAST).ids(0, ROWS).tolist() == [1, 2]


def test_rows_changed_while_a_save_is_under_way_survive_its_commit() -> None:
    marks = tensor_marks(ROWS, CPU)
    marks.live.add(torch.tensor([1]))
    marks.begin()
    marks.live.add(torch.tensor([2]))
    marks.committed(full=False)
    assert marks.touched(Since.LAST).ids(0, ROWS).tolist() == [2]
    assert marks.touched(Since.BASELINE).ids(0, ROWS).tolist() == [1, 2]


def test_no_memory_is_taken_before_a_row_changes() -> None:
    marks = tensor_marks(2**40, CPU)
    marks.begin()
    marks.committed(full=True)
    assert marks.touched(Since.LAST).count(0, 2**40) == 0
    marks.live.add_all()
    assert marks.touched(Since.LAST).count(5, 2**40) == 2**40 - 5
