"""Random numbers inside worker processes: stored with the state that torchdata requests from each worker's dataset.

A worker is seeded when it starts, so after a restart in mid-epoch it would repeat the draws of the epoch's start. A
dataset with a state is restored in each worker to the worker's last batch handed out; here the worker's copy of the
dataset gets such a state, which includes the worker's generators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import new_class
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast.checkpoint.training.plain_loader import PlainDataLoader
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.checkpoint.training.wrapped_loaders import base_of
from holdfast.errors import HoldfastWarning

_RNG, _OWN = "holdfast_rng", "own"
_OF_YOUR_OWN = "Use your own dataset class, with state_dict() and load_state_dict() if it is a stream"
_STATEFUL = "Where that matters, use torchdata.stateful_dataloader.StatefulDataLoader (the same arguments)"


class CarryRandomState:
    """A ``worker_init_fn``: the user's, and then the worker's dataset gets a state that holds the random numbers."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker_id: int) -> None:
        if self._users is not None:
            self._users(worker_id)
        info = get_worker_info()
        if info is not None:
            _extend(info.dataset)


def carry_random_state(loader: object) -> None:
    """Let the loader's workers, from the next ones that it starts, report their random numbers."""
    base: Any = base_of(loader)
    if isinstance(base, DataLoader) and base.num_workers > 0 and not isinstance(base.worker_init_fn, CarryRandomState):
        base.worker_init_fn = CarryRandomState(base.worker_init_fn)


def own_state(dataset_state: Any) -> Any:
    """The dataset's own part of what a worker reports."""
    return dataset_state[_OWN] if _is_ours(dataset_state) else dataset_state


def warn_random_workers(loader: object, state: Mapping[str, Any]) -> None:
    """Say so if the workers of a resumed loader will draw other random numbers than they would have."""
    if state["num_workers"] and not _goes_on_exactly(loader, state):
        is_plain = isinstance(loader, PlainDataLoader)
        warnings.warn(
            f"random numbers drawn by the worker processes of the {type(loader).__qualname__} will differ from those "
            f"of an uninterrupted run: its state does not hold them. {_STATEFUL if is_plain else _OF_YOUR_OWN}",
            HoldfastWarning,
            stacklevel=4,
        )


def _goes_on_exactly(loader: object, state: Mapping[str, Any]) -> bool:
    kept = getattr(loader, "persistent_workers", False)
    if state["epoch_ended"] and not kept:
        return True  # the next epoch's workers are new and seeded anew, as without an interruption
    if isinstance(loader, PlainDataLoader):
        return False
    if state["replayed"]:
        return not (kept and state["epoch"])  # they draw everything again, from the epoch's seed
    workers = state["state"].get("_snapshot", {}).get("_worker_snapshots", {}).values()
    return all(_is_ours(worker["dataset_state"]) or _is_ours(_iterator_state(worker)) for worker in workers)


def _iterator_state(worker: Mapping[str, Any]) -> Any:
    return (worker["fetcher_state"] or {}).get("dataset_iter_state")


def _is_ours(dataset_state: Any) -> bool:
    return isinstance(dataset_state, Mapping) and _RNG in dataset_state


def _extend(dataset: Any) -> None:
    """Give this object, in this process, the two methods; one that cannot be given any stays as it is."""
    kind = type(dataset)
    has_state = hasattr(dataset, "state_dict")
    if isinstance(dataset, IterableDataset) and not has_state:
        return  # it is read again from its start, and its random numbers with it

    def state_dict(self: Any) -> dict[str, Any]:
        rng = capture_rng(cuda=False)
        # A list is not looked into by torchdata. NumPy arrays travel by value, tensors would by file descriptor.
        return {_RNG: [{**rng, "torch": rng["torch"].numpy()}], _OWN: kind.state_dict(self) if has_state else None}

    def load_state_dict(self: Any, state: Mapping[str, Any]) -> None:
        if has_state:
            kind.load_state_dict(self, own_state(state))
        if _is_ours(state):
            (rng,) = state[_RNG]
            restore_rng({**rng, "torch": torch.from_numpy(rng["torch"].copy())})

    members = {
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
        "__slots__": (),
        "__module__": kind.__module__,
    }
    with suppress(Exception):  # a built-in type such as list, or a class that refuses to be derived from
        dataset.__class__ = new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(members))
