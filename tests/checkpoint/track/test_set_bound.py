"""Bounds of sets: never below the truth, and not far above it once a count has come across."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast.checkpoint.track.set_bound import SetBound
from holdfast.kernels.bit_sets import tensors as sets

ROWS = 400_000


class Late:
    """Counts at once, and tells after some looks."""

    def __init__(self, bits: Tensor, rows: int, looks: int) -> None:
        self._found = int(sets.count_later(bits, 0, rows))
        self._looks = looks

    def found(self) -> int | None:
        self._looks -= 1
        return self._found if self._looks < 0 else None


@given(
    sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=12),
    spread=st.sampled_from([50, 5_000, ROWS]),
    looks=st.integers(0, 5),
    clear_at=st.integers(0, 12),
)
def test_a_bound_is_never_below_the_truth(sizes: list[int], spread: int, looks: int, clear_at: int) -> None:
    draw = torch.Generator().manual_seed(len(sizes))
    bits = sets.new_set(ROWS)
    bound = SetBound(ROWS, lambda bits, rows: Late(bits, rows, looks))
    for number, size in enumerate(sizes):
        if number == clear_at:
            sets.clear(bits)
            bound.clear()
        sets.mark(bits, torch.randint(0, spread, (size,), generator=draw), ROWS)
        bound.grow(bits, size)
        assert sets.count(bits, 0, ROWS) <= bound.most <= ROWS


def test_rows_that_come_again_are_not_counted_for_ever() -> None:
    bits = sets.new_set(ROWS)
    bound = SetBound(ROWS, lambda bits, rows: Late(bits, rows, 0))
    ids = torch.arange(50_000)
    for _ in range(40):
        sets.mark(bits, ids, ROWS)
        bound.grow(bits, len(ids))
    assert bound.most <= 200_000  # and not all rows


@given(
    rows=st.integers(1, 300),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    bound=st.integers(0, 320),
    ends=st.tuples(st.integers(0, 300), st.integers(0, 300)),
)
def test_rows_are_listed_up_to_a_bound(rows: int, share: float, bound: int, ends: tuple[int, int]) -> None:
    start, stop = sorted(min(each, rows) for each in ends)
    flags = torch.rand(rows, generator=torch.Generator().manual_seed(rows)) < share
    bits = sets.new_set(rows)
    sets.mark(bits, flags.nonzero(), rows)
    wanted = sets.list_ids(bits, start, stop).tolist()
    found, total = sets.list_bounded(bits, start, stop, bound=bound, fill=-3)
    assert found.tolist() == (wanted[:bound] + [-3] * bound)[:bound]
    assert total.tolist() == [len(wanted)]
