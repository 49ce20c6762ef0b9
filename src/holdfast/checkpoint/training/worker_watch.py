"""Watches worker processes that read an iterable dataset with a state.

After loading a state, torchdata asks every worker for another batch, even one that was exhausted. A dataset that resets
its position at its end would then be read twice; this detects it, before that or at the latest when it happens.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from holdfast.checkpoint.training.worker_rng import own_state
from holdfast.errors import HoldfastWarning, ReaderError


class WorkerWatch:
    """Follows which worker each batch came from and where the workers stand; idle for every other kind of loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        streams = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
        self._active = streams and loader.num_workers > 0
        self._first: dict[int, Any] = {}  # positions at the start of the pass
        self._gave: set[int] = set()  # workers that gave a batch in this pass
        self._exhausted: frozenset[int] = frozenset()  # gave their last one before the state was taken

    def begin(self) -> None:
        """A new pass was opened."""
        if self._active:
            self._first, self._gave, self._exhausted = self._positions(self._loader.state_dict()), set(), frozenset()

    def handed_out(self) -> None:
        """A batch came; raises ReaderError if its worker had none left."""
        if not self._active:
            return
        state = self._loader.state_dict()
        if state["_steps_since_snapshot"]:  # not known at this batch
            return
        worker = state["_snapshot"]["_last_yielded_worker_id"]
        if worker in self._exhausted:
            raise ReaderError(f"{self._begins_anew()}; resume from another checkpoint, or without the reader.")
        self._gave.add(worker)

    def capture(self) -> dict[str, Any] | None:
        """What ``load`` needs, to go with the loader's state."""
        if not self._active:
            return None
        state = self._loader.state_dict()
        return {
            "first": self._first,
            "gave": set(self._gave),
            "exhausted": [
                worker["worker_id"] for worker in _snapshots(state) if worker["fetcher_state"]["fetcher_ended"]
            ],
            "cannot_continue": self._has_begun_anew(state),
        }

    def warn(self, captured: Mapping[str, Any] | None) -> None:
        """Say at a save that the pass cannot be continued from there."""
        if captured is not None and captured["cannot_continue"]:
            warnings.warn(self._begins_anew(), HoldfastWarning, stacklevel=6)

    def load(self, captured: Mapping[str, Any] | None) -> None:
        """Go on in the pass that ``captured`` was taken in; raises ReaderError if batches would come twice."""
        if captured is None:
            return
        if captured["cannot_continue"]:
            raise ReaderError(f"{self._begins_anew()}; resume from another checkpoint, or without the reader.")
        self._first, self._gave = captured["first"], set(captured["gave"])
        self._exhausted = frozenset(captured["exhausted"])

    def _has_begun_anew(self, state: Mapping[str, Any]) -> bool:
        positions = self._positions(state)
        restarted = any(self._is_back(worker, positions) for worker in self._gave & positions.keys())
        return restarted and not state["_iterator_finished"]

    def _positions(self, state: Mapping[str, Any]) -> dict[int, Any]:
        if state["_steps_since_snapshot"]:
            return {}
        states = {worker["worker_id"]: own_state(worker["dataset_state"]) for worker in _snapshots(state)}
        return {worker: position for worker, position in states.items() if position is not None}

    def _is_back(self, worker: int, positions: Mapping[int, Any]) -> bool:
        try:
            return bool(positions[worker] == self._first.get(worker))
        except (RuntimeError, ValueError):  # arrays compare one by one
            return False

    def _begins_anew(self) -> str:
        return (
            f"the {type(self._loader.dataset).__qualname__} resets its position when it is exhausted: after a "
            "checkpoint taken while other workers still had samples, its worker would start over and yield its "
            "samples twice. Keep the position until the next __iter__()"
        )


def _snapshots(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(state["_snapshot"]["_worker_snapshots"].values())
