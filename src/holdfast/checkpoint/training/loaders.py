"""What Holdfast knows about data loaders: which can be resumed, where their randomness lives, how to reopen one.

torchdata is not imported: its ``StatefulDataLoader`` is recognised as a torch ``DataLoader`` with a state.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.checkpoint.training.plain_loader import PlainDataLoader, is_plain
from holdfast.checkpoint.training.wrapped_loaders import base_of, require_known_wrapper
from holdfast.errors import HoldfastWarning, ReaderError

_USE_STATEFUL = (
    "Use torchdata.stateful_dataloader.StatefulDataLoader (the same arguments; pip install 'holdfast[reader]'), or an "
    "iterable with state_dict() and load_state_dict()"
)
_KEEP_STATE = "give it (or the iterator it returns) state_dict() and load_state_dict()"


@runtime_checkable
class StatefulLoader(Protocol):
    """An iterable of batches that can continue.

    ``state_dict()`` is that of the last batch handed out; ``load_state_dict()`` makes the next ``iter()`` give the rest
    of that pass (nothing, after its last batch), and each later ``iter()`` a whole pass.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@runtime_checkable
class ReadAheadLoader(StatefulLoader, Protocol):
    """A loader whose state counts what was read, not what was handed out.

    It reads exactly as many batches as were granted, over the ends of passes too, and hands all of them out. So its
    state is that of the last batch whenever nothing granted is left (Check-N-Run, section 3.1).
    """

    def grant(self, batches: int) -> None: ...


def require_resumable(loader: object) -> StatefulLoader:
    """``loader``, if it can continue where it stopped, or can be made to; otherwise ReaderError with the remedy."""
    kind = type(loader).__qualname__
    if isinstance(loader, DataLoader) and loader.num_workers > 0 and not loader.in_order:
        raise ReaderError(f"a {kind} with in_order=False has no exact state; set in_order=True.")
    if is_plain(base_of(loader)):
        require_known_wrapper(loader, is_plain=True)
        return PlainDataLoader(cast(DataLoader[Any], loader))
    if not isinstance(loader, StatefulLoader):
        raise ReaderError(f"a {kind} has no state: a resumed run could not tell what was read. {_USE_STATEFUL}.")
    require_known_wrapper(loader)
    dataset = getattr(loader, "dataset", None)
    if isinstance(loader, DataLoader) and _surely_has_no_state(dataset):
        warnings.warn(
            f"the {type(dataset).__qualname__} has no state: a resume will reread and discard every batch of the "
            f"epoch up to where it stopped. To avoid this, {_KEEP_STATE}.",
            HoldfastWarning,
            stacklevel=4,
        )
    return loader


def has_small_state(loader: StatefulLoader) -> bool:
    """Whether the loader's state is a few numbers, so that it can be asked for at every step."""
    if isinstance(loader, PlainDataLoader):
        return True
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    return not hasattr(loader.dataset, "state_dict")


def has_length(loader: Any) -> bool:
    """Whether it says how many batches a pass has."""
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        return False
    return True


def state_of(loader: StatefulLoader) -> dict[str, Any]:
    """The loader's state, which later batches do not change."""
    state = loader.state_dict()
    return state if isinstance(loader, DataLoader) else copy.deepcopy(state)  # torchdata's is a copy already


def is_replayed(loader: StatefulLoader, state: Mapping[str, Any]) -> bool:
    """Whether ``state`` leaves out the position in an iterable dataset, so that only reading again leads there."""
    if not (isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)):
        return False
    workers = state["_snapshot"]["_worker_snapshots"].values() if "_snapshot" in state else [state]
    return all(w["dataset_state"] is None and w["fetcher_state"]["dataset_iter_state"] is None for w in workers)


def warn_replay(loader: StatefulLoader, batches: int) -> None:
    """Say what a resume without a dataset's state costs."""
    dataset = type(getattr(loader, "dataset", loader)).__qualname__
    warnings.warn(
        f"the {dataset} has no state: rereading {batches} batches to get back to where the run stopped. "
        f"To avoid this, {_KEEP_STATE}.",
        HoldfastWarning,
        stacklevel=4,
    )


def continue_at(loader: StatefulLoader, state: dict[str, Any]) -> Iterator[Any]:
    """The rest of the pass that ``state`` was taken in."""
    if isinstance(loader, DataLoader):
        rebuild(loader, state)
        return iter(loader)
    if not getattr(loader, "restart_on_stop_iteration", False):
        loader.load_state_dict(state)
        return iter(loader)
    # torchdata.nodes.Loader would look one batch ahead and silently begin the next pass after the last batch.
    loader.restart_on_stop_iteration = False  # type: ignore[attr-defined]
    loader.load_state_dict(state)
    iterator = iter(loader)
    loader.restart_on_stop_iteration = True  # type: ignore[attr-defined]
    return iterator


def rebuild(loader: StatefulLoader, state: dict[str, Any]) -> None:
    """Load ``state``; a DataLoader builds its iterator (and its workers) now, so that nothing draws later."""
    base = base_of(loader)
    base.load_state_dict(state)
    if isinstance(loader, DataLoader):
        base.state_dict()  # torchdata's: builds what the next iter() returns
        _draw_order(base._iterator)


def leave_pass(loader: StatefulLoader, state: dict[str, Any]) -> None:
    """Bring the loader where it was when the pass that ``state`` was taken in was left: the next one is whole."""
    if isinstance(loader, PlainDataLoader):
        return
    rebuild(loader, state)
    if isinstance(loader, DataLoader):
        iter(base_of(loader))  # the rest of that pass, which nobody reads


def replay(loader: StatefulLoader, batches: int) -> Iterator[Any]:
    """A new pass with its first ``batches`` dropped."""
    iterator = iter(loader)
    for _ in itertools.islice(iterator, batches):
        pass
    return iterator


def begin_pass(loader: StatefulLoader) -> Iterator[Any]:
    """A new pass from the start, or from where the user has put the loader."""
    base = base_of(loader)
    if getattr(base, "_initial_iter_for_state_dict", False) and not base._iterator._finished:
        # Its state was asked for before, so its iterator has drawn already, from what nobody has recorded: once more.
        rebuild(loader, base.state_dict())
    if getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None:
        # New workers draw a seed; kept ones do not. A resumed pass always has new ones: draw the same here.
        torch.empty((), dtype=torch.int64).random_(generator=getattr(loader, "generator", None))
    return iter(loader)


def set_epoch(loader: StatefulLoader, epoch: int) -> None:
    """Tell samplers and datasets that shuffle by epoch which one begins."""
    for part in _parts(loader):
        if callable(method := getattr(part, "set_epoch", None)):
            method(epoch)


def generator_states(loader: StatefulLoader) -> list[torch.Tensor]:
    """The states of the generators that the loader and its samplers draw from."""
    return [generator.get_state() for generator in _generators(loader)]


def set_generator_states(loader: StatefulLoader, states: Sequence[torch.Tensor]) -> None:
    """Put the loader's generators back."""
    generators = _generators(loader)
    if len(generators) != len(states):
        raise ReaderError(
            f"the loader draws from {len(generators)} torch.Generators, but the checkpoint's drew from {len(states)}; "
            "give the loader and its sampler the same generator= as before, or resume without the reader."
        )
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def order_seeds(loader: StatefulLoader) -> list[int | None]:
    """What samplers were seeded with when they were made, which no state of theirs tells (Accelerate's, torch's)."""
    return [value if isinstance(value := getattr(part, name, None), int) else None for part, name in _seeds(loader)]


def set_order_seeds(loader: StatefulLoader, seeds: Sequence[int | None]) -> None:
    """Restore the samplers' seeds."""
    for (part, name), seed in zip(_seeds(loader), seeds, strict=False):
        if seed is not None and hasattr(part, name):
            setattr(part, name, seed)


def _seeds(loader: StatefulLoader) -> list[tuple[object, str]]:
    return [(part, name) for part in _parts(loader)[1:] for name in ("initial_seed", "seed")]


def _surely_has_no_state(dataset: object) -> bool:
    if not isinstance(dataset, IterableDataset) or hasattr(dataset, "state_dict"):
        return False
    return inspect.isgeneratorfunction(type(dataset).__iter__)  # any other __iter__ may return a stateful iterator


def _draw_order(iterator: Any) -> None:
    # torchdata fast-forwards a batch sampler without state at the first next(): too late, by then the run's own RNG
    # is back and the sampler would draw another order. Its first batch of indices is drawn now and put back.
    order = getattr(iterator, "_sampler_iter", None)
    if isinstance(order, itertools.islice):
        iterator._sampler_iter = itertools.chain(list(itertools.islice(order, 1)), order)


def _parts(loader: StatefulLoader) -> list[object]:
    distinct: dict[int, object] = {}
    found = [loader, getattr(loader, "dataset", None), *_samplers(loader)]
    while found:
        part = found.pop(0)
        if part is not None and id(part) not in distinct:
            distinct[id(part)] = part
            found += _samplers(part) if part is not loader else []
    return list(distinct.values())


def _samplers(part: object) -> list[object]:
    return [getattr(part, "sampler", None), getattr(part, "batch_sampler", None)]


def _generators(loader: StatefulLoader) -> list[torch.Generator]:
    # Accelerate's SeedableRandomSampler makes its generator late, and seeds it for every pass: see order_seeds.
    found = (getattr(part, "generator", None) for part in _parts(loader) if not hasattr(part, "initial_seed"))
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
