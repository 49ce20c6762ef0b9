"""The dense weights of a checkpoint, reading no more of its state than they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.saved_state import checked_state, shared_state
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_state, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.format.dtypes import torch_dtype
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseState:
    """Parameters and buffers by name, and what modules add to them, as a training state without anything else."""

    tree: Mapping[str, Any]
    read_bytes: int

    @classmethod
    def of(cls, training: Mapping[str, Any], read_bytes: int) -> DenseState:
        """The model's share of a training state."""
        return cls(tree={**training, "optimizers": [], "extra": {}}, read_bytes=read_bytes)


def read_dense(fetcher: Fetcher, manifest: Manifest) -> DenseState:
    """What a writer saved of the model, without its optimizers, its reader and its random numbers."""
    found = read_tensors(fetcher, manifest, {SKELETON})
    empty = [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in manifest.tensors[1:]]
    training = _training(decode_tree(bytes(found[SKELETON]), empty), manifest)
    if training["modules"]:  # may hold anything, at any depth
        whole = _training(read_state(fetcher, manifest), manifest)
        return DenseState.of(whole, sum(spec.length for spec in manifest.tensors))
    number_of = {id(tensor): number for number, tensor in enumerate(empty, start=1)}
    wanted = {name: number_of[id(tensor)] for name, tensor in training["model"].items()}
    found |= read_tensors(fetcher, manifest, set(wanted.values()))
    model = {name: _tensor(manifest, found, number) for name, number in wanted.items()}
    return DenseState.of({**training, "model": model}, sum(map(len, found.values())))


def _training(tree: object, manifest: Manifest) -> Mapping[str, Any]:
    return shared_state(checked_state(tree, manifest), manifest).training


def _tensor(manifest: Manifest, found: Mapping[int, bytearray], number: int) -> Tensor:
    spec = manifest.tensors[number]
    return as_tensor(memoryview(found[number]), spec.dtype, spec.shape)
