"""The random number generators that a training step may draw from: Python's, NumPy's, torch's."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from holdfast.errors import HoldfastWarning


def capture_rng(*, cuda: bool = True) -> dict[str, Any]:
    """The state of every global generator, storable as a tree; CUDA's only where CUDA is in use."""
    devices = range(torch.cuda.device_count()) if cuda and torch.cuda.is_initialized() else ()
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": {index: torch.cuda.get_rng_state(index) for index in devices},
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Continue every generator from ``state``; warns about CUDA devices that are not here."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for index, device_state in state["cuda"].items():
        if index < torch.cuda.device_count():
            torch.cuda.set_rng_state(device_state, index)
    missing = [index for index in state["cuda"] if index >= torch.cuda.device_count()]
    if missing:
        warnings.warn(
            f"the checkpoint holds random states of CUDA devices {missing}, which this machine does not have; "
            "random numbers drawn on a GPU will differ from those of the interrupted run",
            HoldfastWarning,
            stacklevel=2,
        )


@contextmanager
def drawing_from(state: Mapping[str, Any]) -> Iterator[None]:
    """Draw from ``state`` for a while, and then from where it was before."""
    now = capture_rng(cuda=bool(state["cuda"]))
    restore_rng(state)
    try:
        yield
    finally:
        restore_rng(now)
