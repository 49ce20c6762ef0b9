"""The dense weights of a checkpoint, reading no more of its state than they need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.read.fetcher import Fetcher, Manifests
from holdfast.checkpoint.restore.saved_state import checked_state, shared_state
from holdfast.checkpoint.restore.scattered import made_whole
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_state, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.format.dtypes import itemsize, torch_dtype
from holdfast.format.manifest import Manifest
from holdfast.format.scattered import Scattered
from holdfast.format.tree import decode_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseState:
    """Parameters and buffers by name, and what modules add to them, as a training state without anything else."""

    tree: Mapping[str, Any]
    read_bytes: int

    @classmethod
    def of(cls, training: Mapping[str, Any], read_bytes: int) -> DenseState:
        """The model's share of a training state."""
        return cls(tree=_of_model(training), read_bytes=read_bytes)


def read_dense(fetcher: Fetcher, parts: Manifests) -> DenseState:
    """What is stored of the model, without its optimizers, its reader and its random numbers."""
    manifest = parts[0]
    found = read_tensors(fetcher, manifest, {SKELETON})
    empty = [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in manifest.tensors[1:]]
    training = _training(decode_tree(bytes(found[SKELETON]), empty), manifest)
    if training["modules"]:  # may hold anything, at any depth
        whole = _of_model(_training(read_state(fetcher, manifest), manifest))
        return DenseState.of(made_whole(whole, fetcher, parts), sum(spec.length for spec in manifest.tensors))
    number_of = {id(tensor): number for number, tensor in enumerate(empty, start=1)}
    scattered = {name: each for name, each in training["model"].items() if isinstance(each, Scattered)}
    wanted = {name: number_of[id(each)] for name, each in training["model"].items() if name not in scattered}
    found |= read_tensors(fetcher, manifest, set(wanted.values()))
    model = {name: _tensor(manifest, found, number) for name, number in wanted.items()}
    model |= made_whole(scattered, fetcher, parts)
    read_bytes = sum(map(len, found.values())) + sum(_bytes_of(each) for each in scattered.values())
    return DenseState.of({**training, "model": {name: model[name] for name in training["model"]}}, read_bytes)


def _of_model(training: Mapping[str, Any]) -> dict[str, Any]:
    return {**training, "optimizers": [], "extra": {}}


def _bytes_of(scattered: Scattered) -> int:
    return math.prod(scattered.shape) * itemsize(scattered.dtype)


def _training(tree: object, manifest: Manifest) -> Mapping[str, Any]:
    return shared_state(checked_state(tree, manifest), manifest).training


def _tensor(manifest: Manifest, found: Mapping[int, bytearray], number: int) -> Tensor:
    spec = manifest.tensors[number]
    return as_tensor(memoryview(found[number]), spec.dtype, spec.shape)
