"""What a writer saves besides table rows (docs/spec/state.md): its own state and, for the first writer, the job's.

State from which all ranks must continue alike belongs to the job: it is stored once, in the first writer's part, and
every rank reads it there, including ranks that are new to the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from holdfast.errors import DamagedData, RunError
from holdfast.format.dcp_state import is_dcp
from holdfast.format.dtypes import code_of
from holdfast.format.host_values import HostTensor, is_tensor, is_torch_tensor
from holdfast.format.scattered import Scattered
from holdfast.types import DeltaSizes

_ROWS = {"step"}  # of a priority save
_OWN = {"step", "reader", "rng"}
_ALL = {*_OWN, "job", "training"}
_TRAINING = {"model": dict, "modules": dict, "optimizers": list, "extra": dict}
_WEIGHTS_ONLY = "weights_only"  # in the training of an imported checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """What is a rank's own."""

    step: int
    reader: Mapping[str, Any] | None = None  # the position of its data loader
    rng: Mapping[str, Any] | None = None  # its random number generators

    def to_tree(self) -> dict[str, Any]:
        """As a state tree."""
        return {"step": self.step, "reader": self.reader, "rng": self.rng}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RankState:
        """Parse and validate what to_tree produced."""
        reader, rng = (_optional(tree, name, _is_mapping) for name in ("reader", "rng"))
        if rng is not None:
            _require_rng(rng)
        return cls(step=_field(tree, "step", _is_count), reader=reader, rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What is the same for all ranks of a job: the history that the next saves are decided from."""

    deltas: DeltaSizes = field(default_factory=DeltaSizes)  # between the baseline and this checkpoint
    restores: int = 0  # of the model, ever
    coarsest: Mapping[str, int] = field(default_factory=dict)  # precision since the baseline, of tables not exact
    pls: Mapping[str, float | None] | None = None  # the meter of lost samples, where there is one

    def to_tree(self) -> dict[str, Any]:
        """As a state tree."""
        return {
            "deltas": asdict(self.deltas),
            "restores": self.restores,
            "coarsest": dict(self.coarsest),
            "pls": None if self.pls is None else dict(self.pls),
        }

    @classmethod
    def from_tree(cls, tree: object) -> JobState:
        """Parse and validate what to_tree produced."""
        tree = _exactly(tree, set(cls.__slots__), "job")
        return cls(
            deltas=_deltas(tree["deltas"]),
            restores=_field(tree, "restores", _is_count),
            coarsest=_field(tree, "coarsest", _mapping_of(_is_count)),
            pls=_optional(tree, "pls", _mapping_of(lambda value: value is None or _is_amount(value))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """What all ranks have in common."""

    job: JobState
    training: Mapping[str, Any]  # dense weights, optimizers, extras


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The state in one part. ``shared`` state is only in the first part of a checkpoint."""

    rank: RankState
    shared: SharedState | None = None

    def to_tree(self) -> dict[str, Any]:
        """As a state tree."""
        tree = self.rank.to_tree()
        if self.shared is not None:
            tree |= {"job": self.shared.job.to_tree(), "training": self.shared.training}
        return tree

    @classmethod
    def from_tree(cls, tree: object, *, name: str) -> SavedState:
        """The inverse of to_tree, and of ``rows_tree``; raises DamagedData about the object ``name``.

        What DCP saved is intact, but of another kind: raises RunError.
        """
        if is_dcp(tree):
            raise RunError(
                f"{name} was saved by torch.distributed.checkpoint: load it with dcp.load(state_dict, "
                "storage_reader=hf.dcp.Reader(url)) or export it as a DCP folder; give other trainings another URL"
            )
        try:
            return cls._from_tree(tree)
        except (TypeError, ValueError) as error:
            raise DamagedData(name, f"holds a malformed state: {error}") from error

    @classmethod
    def _from_tree(cls, tree: object) -> SavedState:
        keys = set(tree) if isinstance(tree, Mapping) else set()
        tree = _exactly(tree, keys if keys in (_ROWS, _OWN) else _ALL, "the state")
        if keys == _ROWS:
            return cls(rank=RankState(step=_field(tree, "step", _is_count)))
        rank = RankState.from_tree(tree)
        if keys == _OWN:
            return cls(rank=rank)
        job, training = JobState.from_tree(tree["job"]), _training(tree["training"])
        return cls(rank=rank, shared=SharedState(job=job, training=training))


def rows_tree(step: int) -> dict[str, Any]:
    """The state of a priority save, which holds rows and no other state."""
    return {"step": step}


def weights_only_tree(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A training that declares it holds only dense weights: a restore leaves optimizers and extras alone."""
    return {"model": dict(weights), "modules": {}, "optimizers": [], "extra": {}, _WEIGHTS_ONLY: True}


def is_weights_only(training: Mapping[str, Any]) -> bool:
    """Whether a training declares that it holds only dense weights."""
    return _WEIGHTS_ONLY in training


def _deltas(tree: object) -> DeltaSizes:
    tree = _exactly(tree, set(DeltaSizes.__slots__), "deltas")
    sizes = {name: _field(tree, name, _is_amount) for name in ("total", "previous", "last")}
    return DeltaSizes(count=_field(tree, "count", _is_count), **sizes)


def _training(tree: object) -> Mapping[str, Any]:
    optional = {_WEIGHTS_ONLY} if isinstance(tree, Mapping) and _WEIGHTS_ONLY in tree else set()
    tree = _exactly(tree, {*_TRAINING, *optional}, "training")
    for name, kind in _TRAINING.items():
        _field(tree, name, lambda value, kind=kind: isinstance(value, kind))  # type: ignore[misc]
    _field(tree, "model", _mapping_of(lambda value: is_tensor(value) or isinstance(value, Scattered)))
    return tree


def _require_rng(tree: Mapping[str, Any]) -> None:
    tree = _exactly(tree, {"python", "numpy", "torch", "cuda"}, "rng")
    python = _exactly(tree["python"], {"version", "words", "gauss"}, "rng.python")
    _field(python, "version", _is_count)
    _field(python, "words", lambda value: isinstance(value, np.ndarray) and value.dtype == np.uint32)
    _optional(python, "gauss", lambda value: isinstance(value, float))
    _field(tree, "numpy", _is_mapping)
    _field(tree, "torch", _is_random_state)
    cuda = _field(tree, "cuda", lambda value: isinstance(value, Mapping))
    if not all(_is_count(device) and _is_random_state(state) for device, state in cuda.items()):
        raise ValueError("'cuda' is not valid")


def _exactly(tree: object, keys: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(tree, Mapping):
        raise TypeError(f"{what} is a {type(tree).__name__}, not a dict")
    if set(tree) != keys:
        raise ValueError(f"{what} has the fields {sorted(map(str, tree))}, not {sorted(keys)}")
    return tree


def _field(tree: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    if not fits(tree[name]):
        raise ValueError(f"{name!r} is not valid: {tree[name]!r:.80}")
    return tree[name]


def _optional(tree: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    return None if tree[name] is None else _field(tree, name, fits)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_random_state(value: object) -> bool:
    if isinstance(value, HostTensor):
        return (value.dtype, value.array.ndim) == ("U8", 1)
    return is_torch_tensor(value) and (code_of(value.dtype), value.dim()) == ("U8", 1)


def _mapping_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_mapping(value) and all(map(fits, value.values()))
