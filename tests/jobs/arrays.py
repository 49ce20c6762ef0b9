"""What a training holds, by name: compared bit for bit, and kept in files that outlive a killed rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def assert_same(now: Arrays, before: Arrays) -> None:
    """Bit for bit."""
    assert now.keys() == before.keys(), now.keys() ^ before.keys()
    for name, values in before.items():
        assert values.dtype == now[name].dtype, name
        assert values.tobytes() == np.ascontiguousarray(now[name]).tobytes(), f"{name} differs"


def keep(held: Arrays, url: str, step: int, rank: int) -> None:
    """Write down what a rank holds where a run is about to be saved."""
    np.savez(_file(url, step, rank), **held)


def kept(url: str, step: int, rank: int) -> Arrays:
    """What a rank held then."""
    return dict(np.load(_file(url, step, rank)))


def _file(url: str, step: int, rank: int) -> str:
    return f"{url}-{step}-{rank}.npz"
