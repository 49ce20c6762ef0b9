"""torch's own DataLoader, which has no state: its position is a number, and a resumed pass skips that many indices.

The sampler repeats its order, because the reader restores the random generators before the pass is opened. For batches
already trained on only the indices are drawn; no sample is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from holdfast.checkpoint.training.wrapped_loaders import WRAPPED, base_of, open_with
from holdfast.errors import ReaderError


class PlainDataLoader:
    """A DataLoader over a map-style dataset, as a loader with a state. It looks like the one inside.

    That may be one that Accelerate has prepared: then indices are skipped in the loader that it wraps.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._reads: Any = base_of(loader)
        self._batches = 0  # handed out in this pass
        self._is_loaded = False

    def __getattr__(self, name: str) -> Any:
        if name == WRAPPED:  # which is none of a reader's business
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        skipped = self._batches if self._is_loaded else 0
        self._batches, self._is_loaded = skipped, False
        return self._counted(self._opened(skipped) if skipped else iter(self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """As of the last batch handed out."""
        return {"batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next pass is the rest of one.

        Args:
            state_dict: What ``state_dict()`` gave in that pass.
        """
        self._batches, self._is_loaded = state_dict["batches"], True

    def _counted(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self._batches += 1
            yield batch
        self._batches = 0  # the next pass is a whole one

    def _opened(self, skipped: int) -> Iterator[Any]:
        """A pass without its first batches. Worker processes are given indices as soon as they start: skip before."""
        indices = "sampler" if self._reads.batch_sampler is None else "batch_sampler"
        attributes = self._reads.__dict__  # a DataLoader refuses to be changed
        sampler = attributes[indices]
        attributes[indices] = _SkipOnce(sampler, skipped)
        self._reads._iterator = None  # workers that were kept would go on with the sampler that they know
        try:
            iterator: Any = iter(self._reads)
        finally:
            attributes[indices] = sampler
        iterator._sampler_iter.skip()  # the order is drawn now: later the random numbers are those of the run again
        if self._reads is not self._loader:
            open_with(self._reads, iterator)
            iterator = iter(self._loader)
        return cast(Iterator[Any], iterator)


class Replayed(PlainDataLoader):
    """Declares that a ``DataLoader`` with an iteration of its own can be continued as a plain one is.

    It must read its dataset by the indices of its sampler, in their order, and get the same order from the same random
    numbers. A resume lets the sampler repeat its order and skips the indices already trained. Plain ``DataLoader``
    objects need no such declaration.

    Args:
        loader: An object of a subclass of ``torch.utils.data.DataLoader``, over a map-style dataset.

    Raises:
        ReaderError: It is not such a loader.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            raise ReaderError(
                f"hf.Replayed() takes a DataLoader over a map-style dataset, not {type(loader).__qualname__}: there is "
                "no order of indices to repeat. Give your loader state_dict() and load_state_dict() instead."
            )
        super().__init__(loader)


class _SkipOnce:
    """A sampler of which the first pass that is read begins later."""

    def __init__(self, sampler: Any, skipped: int) -> None:
        self._sampler = sampler
        self._skipped = skipped

    def __iter__(self) -> _Rest:
        return _Rest(self, iter(self._sampler))

    def __len__(self) -> int:
        return len(self._sampler)

    def skip(self, indices: Iterator[Any]) -> None:
        """Draw what is to be skipped."""
        skipped, self._skipped = self._skipped, 0
        for _ in islice(indices, skipped):
            pass


class _Rest(Iterator[Any]):
    """A DataLoader makes two of them and reads one."""

    def __init__(self, owner: _SkipOnce, indices: Iterator[Any]) -> None:
        self._owner = owner
        self._indices = indices

    def __next__(self) -> Any:
        self.skip()
        return next(self._indices)

    def skip(self) -> None:
        self._owner.skip(self._indices)


def is_plain(loader: object) -> bool:
    """Whether it is torch's own DataLoader over a dataset and a sampler that give the same again when asked again."""
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return False
    is_torchs = all(getattr(type(loader), name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator"))
    dataset = loader.dataset
    is_stateless = not (isinstance(dataset, IterableDataset) or hasattr(dataset, "state_dict"))
    is_read_once = isinstance(loader.sampler, Iterator) or isinstance(loader.batch_sampler, Iterator)
    return is_torchs and is_stateless and not is_read_once
