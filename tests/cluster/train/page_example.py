"""The place that the specification shows."""

from __future__ import annotations

import torch

from holdfast.cluster.train.place import Place


def sample_place() -> bytes:
    """Of a worker after seven steps, without a loader or random numbers."""
    return Place(steps=7, reader=None, rng=None, buffers={"mean": torch.tensor([1.0, -2.0])}).to_bytes()
