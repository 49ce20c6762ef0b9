"""Place: from where a worker's next step starts, as bytes that travel with each push and come back to a replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.cluster.place_tree import join_place, join_section, place_tree, sections_of
from holdfast.errors import DamagedData
from holdfast.format.dtypes import code_of
from holdfast.format.host_values import HostTensor
from holdfast.format.tree import encode_tree

_CAPTURED = {"drawn", "epoch_start", "rng"}  # sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a worker goes on."""

    steps: int  # pushed before
    reader: Mapping[str, Any] | None  # the position of its loader
    rng: Mapping[str, Any] | None  # the random generators
    buffers: Mapping[str, torch.Tensor]  # of its copy of the model: running means and the like are no parameters

    def to_bytes(self) -> bytes:
        """For the wire; ``from_bytes`` returns an equal place."""
        return join_place(self.steps, [_section(name, value) for name, value in self.sections().items()])

    def sections(self) -> dict[str, Any]:
        """The trees that it is stored as."""
        return sections_of(reader=self.reader, rng=self.rng, buffers=self.buffers)

    @classmethod
    def from_bytes(cls, data: bytes) -> Place:
        """The place that ``to_bytes`` described; DamagedData where these bytes are none."""
        tree = _in_torch(place_tree(data))
        if not isinstance(tree["buffers"], dict):
            raise DamagedData("a worker's place", "holds no buffers")
        return cls(steps=tree["steps"], reader=tree["reader"], rng=tree["rng"], buffers=tree["buffers"])


class PlaceEncoder:
    """Encodes the places of one worker, step after step: what did not change is not encoded again.

    Random generators of the host seldom move in a training, and to encode them takes longer than to compare them.
    What was captured of them is never changed, so it is not copied either, and need not even be compared.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sections: dict[str, bytes] = {}

    def encode(self, place: Place) -> bytes:
        """As ``Place.to_bytes`` does."""
        return join_place(place.steps, [self._section(name, value) for name, value in place.sections().items()])

    def _section(self, name: str, value: Any) -> bytes:
        known = self._sections.get(name)
        if known is None or not _same(value, self._values[name]):
            known = self._sections[name] = _section(name, value)
            self._values[name] = value if name in _CAPTURED else _kept(value)
        return known


def _section(name: str, value: Any) -> bytes:
    encoded = encode_tree(dict(value) if isinstance(value, Mapping) else value, root=f"place.{name}")
    tensors = [tensor.detach().cpu().contiguous() for tensor in encoded.tensors]
    parts = [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return join_section([(code_of(tensor.dtype), tensor.shape) for tensor in tensors], encoded.skeleton, parts)


def _same(value: Any, known: Any) -> bool:
    if value is known:
        return True
    if isinstance(value, torch.Tensor):
        fits = isinstance(known, torch.Tensor) and value.dtype == known.dtype and value.device == known.device
        return fits and torch.equal(value, known)
    if isinstance(value, np.ndarray):
        return isinstance(known, np.ndarray) and value.dtype == known.dtype and np.array_equal(value, known)
    if isinstance(value, Mapping):
        fits = isinstance(known, Mapping) and list(value) == list(known)
        return fits and all(_same(each, known[key]) for key, each in value.items())
    if isinstance(value, list | tuple):
        fits = type(value) is type(known) and len(value) == len(known)
        return fits and all(_same(each, other) for each, other in zip(value, known, strict=True))
    return type(value) is type(known) and bool(value == known) and repr(value) == repr(known)


def _kept(value: Any) -> Any:
    """A copy that nobody else changes."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _kept(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(each) for each in value] if isinstance(value, list) else tuple(map(_kept, value))
    return set(value) if isinstance(value, set) else value


def _in_torch(tree: Any) -> Any:
    if isinstance(tree, HostTensor):
        return tree.in_torch()
    if isinstance(tree, dict):
        return {key: _in_torch(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_in_torch(value) for value in tree)
    return tree
