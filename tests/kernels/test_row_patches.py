"""Rows that are put back into a piece of a table."""

from __future__ import annotations

import pytest
import torch

from holdfast.kernels.row_patches import put_inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
def test_only_rows_of_the_piece_are_written(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first, rows = 2**33, 50
    before = torch.randint(0, 100, (rows, *shape)).to(dtype)
    ids = torch.randint(-20, rows + 20, (300,)) + first
    known = torch.randint(100, 200, (rows + 40, *shape)).to(dtype)
    found = before.clone()
    put_inside(found, known[ids - first + 20], ids, first=first)
    for row in range(rows):
        wanted = known[row + 20] if (ids == first + row).any() else before[row]
        assert torch.equal(found[row], wanted)


def test_no_rows_are_no_change() -> None:
    rows = torch.ones(3, 2)
    put_inside(rows, torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), first=0)
    assert torch.equal(rows, torch.ones(3, 2))
