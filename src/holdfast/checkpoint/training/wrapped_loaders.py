"""Loaders that wrap another one: Accelerate's, which look like data loaders and iterate over one inside.

Accelerate is not imported. Its ``DataLoaderShard`` fetches one batch ahead, to know which is the last, and its state is
that of the batch handed out. The wrapped loader is opened and restored here; the batch fetched ahead gets the random
numbers of its first fetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset

from holdfast.checkpoint.training.rng import capture_rng, drawing_from
from holdfast.errors import ReaderError

_STATEFUL = (
    "Set DataLoaderConfiguration(use_stateful_dataloader=True), or do not prepare the loader and move its batches to "
    "the device yourself"
)


WRAPPED = "base_dataloader"
_opened: WeakKeyDictionary[Any, Iterator[Any]] = WeakKeyDictionary()  # what a loader's next pass is


def base_of(loader: Any) -> Any:
    """The loader that does the reading: that inside of a wrapper, else itself."""
    return getattr(loader, WRAPPED, loader)


def open_with(base: Any, iterator: Iterator[Any]) -> None:
    """Let the next pass over the wrapped loader read from ``iterator``."""
    _opened[base] = iterator


def require_known_wrapper(loader: Any, *, is_plain: bool = False) -> None:
    """Raise ReaderError for wrappers whose state is not that of the batch handed out.

    ``is_plain``: the wrapped loader needs none, its position is a number.
    """
    base = base_of(loader)
    if base is loader:
        return
    kind = type(loader).__qualname__
    if not is_plain and not hasattr(base, "state_dict"):
        raise ReaderError(f"a {kind} around a {type(base).__qualname__} has no state. {_STATEFUL}.")
    if kind != "DataLoaderShard":
        raise ReaderError(f"the state of a {kind} does not match the batch it yields; set dispatch_batches=False.")
    if getattr(loader, "skip_batches", 0):
        raise ReaderError(
            f"a {kind} that skips batches cannot be resumed; skip none, batches() continues automatically."
        )
    if isinstance(base, DataLoader) and base.num_workers > 0 and isinstance(base.dataset, IterableDataset):
        raise ReaderError(f"a {kind} over a stream with worker processes has no exact state. {_STATEFUL}.")


class InnerFetches:
    """What a wrapped loader draws from when it fetches the batch that is ahead; idle for any other loader."""

    def __init__(self, loader: Any) -> None:
        self._base = base_of(loader)
        self._before: Mapping[str, Any] | None = None  # the last fetch
        self._skips = 0  # fetches until the one that was ahead when the state was taken
        self._ahead: Mapping[str, Any] | None = None
        if self._base is not loader:
            self._base.__iter__ = self._iterate  # which is what a DataLoaderShard calls

    def capture(self) -> list[Mapping[str, Any]]:
        """What ``load`` needs, to go with the loader's state."""
        return [] if self._before is None else [self._before]

    def load(self, captured: Sequence[Mapping[str, Any]], *, dropped: int) -> None:
        """Fetch the batch that was ahead as it was fetched then, after ``dropped`` others."""
        self._ahead = captured[0] if captured else None
        self._skips = dropped

    def _iterate(self) -> Iterator[Any]:
        iterator = _opened.pop(self._base, None) or type(self._base).__iter__(self._base)
        while True:
            try:
                batch = self._fetch(iterator)
            except StopIteration:
                return
            yield batch

    def _fetch(self, iterator: Iterator[Any]) -> Any:
        if self._ahead is None or self._skips > 0:
            self._skips -= 1
            self._before = capture_rng(cuda=False)
            return next(iterator)
        self._before, self._ahead = self._ahead, None
        with drawing_from(self._before):
            return next(iterator)
