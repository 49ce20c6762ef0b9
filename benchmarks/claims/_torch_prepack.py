"""The rival: PyTorch's row-wise quantization for embedding bags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Rows = NDArray[np.float32]

_NAMES = {2: "2bit", 4: "4bit", 8: "byte"}


def pack(rows: Rows, bits: int) -> torch.Tensor:
    """Smallest to largest value."""
    packed: torch.Tensor = _operation(bits, "prepack")(torch.from_numpy(rows))
    return packed


def pack_searched(rows: Rows, bits: int, num_bins: int, ratio: float) -> torch.Tensor:
    """With ``optimized_qparams``: its greedy search."""
    packed: torch.Tensor = _operation(bits, "prepack")(torch.from_numpy(rows), True, num_bins, ratio)
    return packed


def unpack(packed: torch.Tensor, bits: int) -> Rows:
    rows: Rows = _operation(bits, "unpack")(packed).numpy()
    return rows


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch uses so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _operation(bits: int, direction: str) -> Any:
    return getattr(torch.ops.quantized, f"embedding_bag_{_NAMES[bits]}_{direction}")
