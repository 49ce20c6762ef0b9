"""The random number generators that a training step may draw from: Python's, NumPy's, torch's."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import HoldfastWarning


@dataclass(frozen=True, slots=True, eq=False)
class Generators:
    """The states of the global generators, as these give them: nothing changes them any more."""

    python: tuple[Any, ...]
    numpy: Mapping[str, Any]
    torch: Tensor
    cuda: Mapping[int, Tensor]

    @classmethod
    def now(cls, *, cuda: bool = True) -> Generators:
        """As they are; CUDA's only where CUDA is in use. Training waits for it: the rest is for ``to_tree``."""
        devices = torch.cuda.default_generators if cuda and torch.cuda.is_initialized() else ()
        return cls(
            random.getstate(),
            np.random.get_state(legacy=False),
            torch.default_generator.get_state(),
            {index: generator.get_state() for index, generator in enumerate(devices)},
        )

    def to_tree(self) -> dict[str, Any]:
        """As a state tree."""
        version, words, gauss = self.python
        return {
            "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
            "numpy": self.numpy,
            "torch": self.torch,
            "cuda": self.cuda,
        }


def capture_rng(*, cuda: bool = True) -> dict[str, Any]:
    """The state of every global generator, storable as a tree; CUDA's only where CUDA is in use."""
    return Generators.now(cuda=cuda).to_tree()


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
