"""Compares the Triton kernels with the reference, without Numba and without pytest, which a GPU machine may lack.

On a GPU: PYTHONPATH=src python tests/kernels/triton_check.py cuda
Without:  PYTHONPATH=src TRITON_INTERPRET=1 python tests/kernels/triton_check.py cpu
"""

import sys

import numpy as np
import torch

from holdfast.kernels import row_patches
from holdfast.kernels.bit_sets import gpu, reference
from holdfast.kernels.bit_sets import tensors as sets
from holdfast.kernels.row_patches import gpu as patches

ROWS = (1, 31, 32, 33, 64, 65, 700, 9000)


def check_marks(rows: int, dtype: type, draw: np.random.Generator, device: str) -> None:
    for length in (0, 1, 40, 600):
        ids = draw.integers(0, rows, length).astype(dtype)
        bits, wanted = sets.new_set(rows, device), sets.new_set(rows)
        gpu.mark(bits, torch.from_numpy(ids).to(device), rows)
        reference.mark(wanted.numpy(), ids, rows)
        assert torch.equal(bits.cpu(), wanted), ("mark", rows, length, dtype)
        assert gpu.list_ids(bits, 0, rows).tolist() == sorted(set(ids.tolist()))
        check_bounded(bits, rows)
        assert gpu.count(bits, rows // 3, rows) == reference.count(wanted.numpy(), rows // 3, rows)


def check_bounded(bits: torch.Tensor, rows: int) -> None:
    for start, stop in ((0, rows), (rows // 3, rows), (rows // 3, rows - rows // 5)):
        if start == stop:
            continue
        wanted = gpu.list_ids(bits, start, stop).tolist()
        assert gpu.count_later(bits, start, stop).tolist() == [len(wanted)]
        for bound in (0, 1, len(wanted) // 2, len(wanted), len(wanted) + 9):
            found, count = gpu.list_bounded(bits, start, stop, bound, -7)
            assert count.tolist() == [len(wanted)], ("count", rows, start, stop, bound)
            assert found.tolist() == (wanted[:bound] + [-7] * bound)[:bound], ("list", rows, start, stop, bound)


def check_nonzero_rows(rows: int, dtype: type, draw: np.random.Generator, device: str) -> None:
    for columns in (1, 5, 64, 70):
        chosen = draw.random((rows, columns)) < 0.5 / columns
        patterns = (chosen * draw.integers(-100, 100, (rows, columns))).astype(dtype)
        bits, wanted = sets.new_set(rows, device), sets.new_set(rows)
        gpu.mark_nonzero_rows(bits, torch.from_numpy(patterns).to(device))
        reference.mark_nonzero_rows(wanted.numpy(), patterns)
        assert torch.equal(bits.cpu(), wanted), ("nonzero", rows, columns, dtype)


def check_patches(dtype: torch.dtype, first: int, device: str) -> None:
    for shape in ((50,), (50, 3), (50, 70)):
        before = torch.randint(0, 100, shape).to(dtype)
        ids = torch.randint(-20, 70, (200,)) + first
        values = torch.randint(0, 100, (90, *shape[1:])).to(dtype)[ids - first + 20]
        wanted, found = before.clone(), before.to(device)
        row_patches.put_inside(wanted, values, ids, first=first)
        patches.put_inside(found, values.to(device), ids.to(device), first)
        assert torch.equal(found.cpu(), wanted), ("patches", dtype, first, shape)


def check_many_rows(device: str) -> None:
    rows = 2**31 + 64
    bits = sets.new_set(rows, device)
    gpu.mark(bits, torch.tensor([2**31 - 1, 2**31, 2**31 + 63, -1, rows], device=device), rows)
    assert gpu.list_ids(bits, 2**31 - 64, rows).tolist() == [2**31 - 1, 2**31, 2**31 + 63]


def main(device: str) -> None:
    sys.modules["numba"] = None  # type: ignore[assignment]
    draw = np.random.default_rng(7)
    for rows in ROWS:
        for dtype in (np.int64, np.int32):
            check_marks(rows, dtype, draw, device)
        for dtype in (np.uint8, np.int16, np.int32, np.int64):
            check_nonzero_rows(rows, dtype, draw, device)
    check_many_rows(device)
    for kind in (torch.uint8, torch.float16, torch.float32, torch.int64):
        for first in (0, 17, 2**33):
            check_patches(kind, first, device)
    print(f"the Triton kernels equal the reference on {device}")


if __name__ == "__main__":
    main(sys.argv[1])
