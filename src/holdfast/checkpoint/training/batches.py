"""The reader: yields batches over epochs and knows, at each, how to continue after it (Check-N-Run, section 3.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakMethod

from holdfast.checkpoint.training.epoch import Epoch
from holdfast.checkpoint.training.loaders import (
    ReadAheadLoader,
    begin_pass,
    continue_at,
    generator_states,
    has_length,
    has_small_state,
    is_replayed,
    leave_pass,
    order_seeds,
    rebuild,
    replay,
    require_resumable,
    set_epoch,
    set_generator_states,
    set_order_seeds,
    state_of,
    warn_replay,
)
from holdfast.checkpoint.training.places import Places
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.checkpoint.training.worker_rng import carry_random_state, warn_random_workers
from holdfast.checkpoint.training.worker_watch import WorkerWatch
from holdfast.checkpoint.training.wrapped_loaders import InnerFetches
from holdfast.errors import ReaderError

logger = logging.getLogger("holdfast")

_OVER: Final = object()  # instead of a batch

OnIterator = Callable[[], None]


class Reader:
    """Wraps the user's loader, so that across kills every sample is handed out exactly once per epoch.

    A sampler without state is put back by restoring the random generators of the epoch's start before it is opened;
    one that draws from a global generator while the epoch runs must have a state of its own. One case is exact in what
    is read but not in its order: torch's ``RandomSampler`` with ``generator=``, resumed right after an epoch's last
    batch, may shuffle the next epoch differently (``shuffle=True`` does not).
    """

    def __init__(self, loader: object) -> None:
        self._loader = require_resumable(loader)
        self._read_ahead = self._loader if isinstance(self._loader, ReadAheadLoader) else None
        carry_random_state(self._loader)
        self._workers = WorkerWatch(loader)
        self._inner = InnerFetches(loader)
        self.places = Places(_weakly(self.state), cheap=has_small_state(self._loader))
        self._iterator: Iterator[Any] | None = None
        self._loaded: Mapping[str, Any] | None = None  # a state that no iterator has been opened from yet
        self._live = False
        self._outstanding = 0
        self._epoch = 0  # of the last batch handed out
        self._epoch_batches = 0
        self._told = False
        self._epoch_ended = False
        self._epoch_start: dict[str, Any] = {}  # generators before the epoch's iterator drew from them
        self._maybe_behind = False  # the next pass may turn out to be the empty rest of an ended one
        self._left_early = False  # the last pass ended because the next one was asked for
        self._by_epoch = False  # a loop over epochs() is live
        self._work_due = False  # of the epoch of the last batch handed out, read by such a loop
        self.has_news = False  # the work of an epoch was done since the last snapshot

    @property
    def reads_ahead(self) -> bool:
        """Whether the loader must be granted its batches."""
        return self._read_ahead is not None

    @property
    def next_epoch(self) -> int:
        """The epoch of the batch that comes next, if there is another one in an epoch that was begun."""
        return self._upcoming_epoch + (self.at_end_of_pass and not self._epoch_ended)

    @property
    def has_length(self) -> bool:
        """Whether the loader says how many batches a pass has."""
        return has_length(self._loader)

    @property
    def at_end_of_pass(self) -> bool:
        """Whether the last batch handed out was a pass's last one, as far as the loader says."""
        return self.has_length and self._epoch_batches == len(self._loader)  # type: ignore[arg-type]

    @property
    def is_live(self) -> bool:
        """Whether a loop is in the middle of ``batches()``."""
        return self._live

    @property
    def outstanding(self) -> int:
        """Granted batches not yet handed out."""
        return self._outstanding

    @property
    def at_boundary(self) -> bool:
        """Whether the loader's state is that of the last batch handed out: only then may a checkpoint be taken."""
        return self._outstanding == 0

    @property
    def why_not_save(self) -> str | None:
        """Why no checkpoint may be taken here; None if one may."""
        if not self.at_boundary:
            return "the loader has prefetched batches that no step has used; call save() before the next batch is read"
        if self._is_at_work:
            return (
                f"a resume could not tell how much of the per-epoch work of epoch {self._epoch} was done; call "
                "finish() on the epoch when it is done, then save()"
            )
        return None

    def saved(self) -> None:
        """A snapshot holds where the reader is."""
        self.has_news = False

    def grant(self, batches: int) -> None:
        """Allow the loader to read ``batches`` more: exactly those up to the next checkpoint."""
        if self._read_ahead is not None and batches > 0:
            self._outstanding += batches
            if self._loaded is None:  # otherwise it is passed on once the loader holds its state
                self._read_ahead.grant(batches)

    def batches(self, epochs: int | None = None, *, on_iterator: OnIterator | None = None) -> Iterator[Any]:
        """Batches up to the end of epoch ``epochs``, counted from the start of training; without end for None.

        Continues where the last batch was handed out. After ``load_state``, ``on_iterator`` is called once the
        loader's iterator exists, which draws random numbers: the place to restore the run's own generators.
        """
        with self._iterating(on_iterator):
            self._work_due = False
            while (batch := self._take(epochs, on_iterator)) is not _OVER:
                yield batch

    def one_pass(self, *, anew: bool = False, on_iterator: OnIterator | None = None) -> Iterator[Any]:
        """The rest of the pass that ``load_state`` has found under way, otherwise a whole one.

        A pass that was left before its end is over now; with ``anew`` the loaded one is, too.
        """
        if self._loaded is None or anew or self.at_end_of_pass:
            self._leave_pass()
        return self.batches(self._upcoming_epoch + 1, on_iterator=on_iterator)

    def epochs(self, epochs: int, *, on_iterator: OnIterator | None = None) -> Iterator[Epoch]:
        """The epochs up to ``epochs`` whose work is still to be done, each with those batches that are still to come.

        The state says of an epoch that its work is due until the loop turns to the next one, or is left after the
        epoch's last batch. In between, while that work is done, there is no state to be saved.
        """
        with self._iterating(on_iterator):
            self._by_epoch = True
            self._work_due |= self._epoch_batches > 0 and not self._epoch_ended
            while (number := self._epoch_at_work) < epochs:
                rest = self._rest_of(number, on_iterator)
                epoch = Epoch(number, rest, partial(self._end_work, rest))
                try:
                    yield epoch
                except GeneratorExit:
                    if self._is_at_work:
                        epoch.finish()
                    raise
                epoch.finish()

    def warn_gaps(self, saved: Mapping[str, Any] | None) -> None:
        """Tell what a resume from ``saved`` would skip or refuse: it would be too late then."""
        if self.places.handed_out == 0 and not self._told:
            self._told = True
            logger.warning("loader= was passed, but no batch was taken from batches(): its position is not saved")
        if saved is not None:
            self._workers.warn(saved["workers"])
        self.places.tell_skipped()

    def state(self) -> dict[str, Any] | None:
        """How to continue after the last batch handed out; None if there was none."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self.places.handed_out == 0:
            return None
        state = state_of(self._loader)
        replayed = is_replayed(self._loader, state)
        return {
            "loader": type(self._loader).__qualname__,
            "num_workers": self._num_workers,
            "epoch": self._epoch,
            "epoch_batches": self._epoch_batches,
            "epoch_ended": self._epoch_ended,
            "batches": self.places.handed_out,
            "epoch_start": self._epoch_start,
            "generators": generator_states(self._loader),
            "replayed": replayed,
            "workers": self._workers.capture(),
            "state": None if replayed else state,
            "seeds": order_seeds(self._loader),
            "inner": self._inner.capture(),
            "drawn": [],
            **({"work_due": True} if self._work_due else {}),
            **({"left_early": True} if self._left_early else {}),
        }

    def load_state(self, state: Mapping[str, Any], rng: Mapping[str, Any] | None = None) -> None:
        """Continue from ``state`` at the next ``batches()``; raises ReaderError if this loader cannot.

        ``rng`` are the random numbers that were saved with it.
        """
        if self._live:
            raise ReaderError("batches() is being iterated; leave that loop before going back")
        self._require_same("num_workers", state["num_workers"], self._num_workers)
        self._require_same("type", state["loader"], type(self._loader).__qualname__)
        self._workers.load(state["workers"])
        self._loaded, self._iterator, self._outstanding = state, None, 0
        self._epoch, self._epoch_batches = state["epoch"], state["epoch_batches"]
        self._epoch_start = state["epoch_start"]
        self._epoch_ended = state["epoch_ended"] or _is_finished(state["state"])
        self._work_due, self.has_news = state.get("work_due", False), False
        self._left_early = state.get("left_early", False)
        self.places.load(state, rng)
        if state["replayed"] and not self._epoch_ended:
            warn_replay(self._loader, self._epoch_batches)
        warn_random_workers(self._loader, state)

    @property
    def _num_workers(self) -> int | None:
        return getattr(self._loader, "num_workers", None)

    @property
    def _upcoming_epoch(self) -> int:
        return self._epoch + self._epoch_ended

    @property
    def _is_at_work(self) -> bool:
        """Whether all batches of an epoch were handed out, and nobody has said that the work after them is over."""
        return self._by_epoch and self._work_due and self._epoch_ended and self._loaded is None

    @property
    def _epoch_at_work(self) -> int:
        """That whose batches, or whose work, come next in a loop over epochs."""
        return self._epoch if self._work_due else self._upcoming_epoch

    def _require_same(self, what: str, before: object, now: object) -> None:
        if before != now:
            raise ReaderError(
                f"the loader's {what} was {before} when the checkpoint was taken and is {now} now: it cannot continue "
                f"exactly. Set it back to {before}, or resume without the reader (every sample may then be read again)."
            )

    def _is_over(self, epochs: int | None) -> bool:
        return epochs is not None and self._upcoming_epoch >= epochs

    @contextmanager
    def _iterating(self, on_iterator: OnIterator | None) -> Iterator[None]:
        """One loop at a time; what was granted beyond its end is not waited for."""
        if self._live:
            raise ReaderError("batches() is already being iterated; finish or close that loop first")
        self._live = True
        self.places.begin_loop()
        try:
            yield
            self._outstanding = 0  # nothing more will be asked for
            if self._loaded is not None and on_iterator is not None:
                on_iterator()
        finally:
            self._live = self._by_epoch = False

    def _rest_of(self, epoch: int, on_iterator: OnIterator | None) -> Iterator[Any]:
        """The batches of an epoch that are still to come; what was loaded is open before its work draws."""
        if self._loaded is not None:
            self._continue(self._loaded, on_iterator)
        while (batch := self._take(epoch + 1, on_iterator)) is not _OVER:
            yield batch

    def _end_work(self, rest: Iterator[Any]) -> None:
        """All of an epoch is done."""
        if next(rest, _OVER) is not _OVER:
            raise ReaderError(
                f"the batches of epoch {self._epoch} were not read to the end: read all of them, or leave the loop "
                "over epochs() too. For shorter epochs use a sampler, such as RandomSampler(num_samples=...)"
            )
        self.has_news |= self._work_due
        self._work_due = False

    def _take(self, epochs: int | None, on_iterator: OnIterator | None) -> Any:
        """The next batch to hand out."""
        if self._is_over(epochs):
            return _OVER
        self.places.ask()
        if self._loaded is not None:
            self._continue(self._loaded, on_iterator)
        with self.places.drawing():
            batch = self._next(epochs)
        if batch is not _OVER:
            self.places.hand_out()
        return batch

    def _continue(self, loaded: Mapping[str, Any], on_iterator: OnIterator | None) -> None:
        """Open the loaded state."""
        self._iterator = self._resume(loaded)
        self._loaded = None
        if self._read_ahead is not None and self._outstanding:
            self._read_ahead.grant(self._outstanding)
        if on_iterator is not None:
            on_iterator()

    def _next(self, epochs: int | None) -> Any:
        """The next batch of this pass or of one after it."""
        while not self._is_over(epochs):
            if self._iterator is None:
                self._iterator = self._begin_epoch()
            batch = self._fetch(self._iterator)
            if batch is not _OVER:
                return batch
            self._end_pass(endless=epochs is None)
        return _OVER

    def _resume(self, loaded: Mapping[str, Any]) -> Iterator[Any] | None:
        """The rest of the loaded epoch; None if it had ended."""
        restore_rng(self._epoch_start["rng"])
        set_order_seeds(self._loader, loaded["seeds"])
        set_generator_states(self._loader, self._epoch_start["generators"])
        set_epoch(self._loader, self._epoch)
        iterator = None
        if self._epoch_ended:
            self._maybe_behind = not self._left_early
            if not loaded["replayed"]:
                (leave_pass if self._left_early else rebuild)(self._loader, loaded["state"])
        elif loaded["replayed"]:
            self._inner.load(loaded["inner"], dropped=self._epoch_batches)
            iterator = replay(self._loader, self._epoch_batches)
        else:
            self._inner.load(loaded["inner"], dropped=0)
            iterator = continue_at(self._loader, loaded["state"])
        set_generator_states(self._loader, loaded["generators"])
        return iterator

    def _begin_epoch(self) -> Iterator[Any]:
        self._epoch, self._epoch_batches, self._epoch_ended = self._upcoming_epoch, 0, False
        self._left_early = False
        self._work_due = self._by_epoch
        set_epoch(self._loader, self._epoch)
        self._epoch_start = {"rng": capture_rng(cuda=False), "generators": generator_states(self._loader)}
        iterator = begin_pass(self._loader)
        self._workers.begin()
        return iterator

    def _fetch(self, iterator: Iterator[Any]) -> Any:
        """The next batch of this pass."""
        if self.reads_ahead and self._outstanding == 0:
            raise ReaderError("a loader that reads ahead was asked for a batch that was not granted")
        try:
            batch = next(iterator)
        except StopIteration:
            return _OVER
        self._workers.handed_out()
        self._epoch_batches += 1
        self._outstanding -= self.reads_ahead
        return batch

    def _leave_pass(self) -> None:
        """End a pass of which batches may be left."""
        if self._live:
            raise ReaderError("batches() is already being iterated; finish or close that loop first")
        if self._epoch_batches == 0 or self._epoch_ended:
            return
        self._iterator = None
        self._epoch_ended = self._left_early = True
        self.places.leave_pass()
        if self._loaded is not None:
            self._loaded = {**self._loaded, "epoch_ended": True, "left_early": True}

    def _end_pass(self, *, endless: bool) -> None:
        self._iterator = None
        behind, self._maybe_behind = self._maybe_behind, False
        if self._epoch_batches > 0:
            self._epoch_ended = True
        elif not behind:
            if endless or self.places.handed_out > 0:
                raise ReaderError(
                    f"the {type(self._loader).__qualname__} yielded no batch in epoch {self._epoch}; every iter() "
                    "must start a full, non-empty pass"
                )
            self._epoch_ended = True


def _weakly(state: Callable[[], dict[str, Any] | None]) -> Callable[[], dict[str, Any] | None]:
    """A reader's method that does not keep the reader.

    In a cycle, the worker processes of its loader would be left to the garbage collector, which takes their queues away
    first: ending them takes ten seconds then.
    """
    method = WeakMethod(state)

    def call() -> dict[str, Any] | None:
        found = method()
        return None if found is None else found()

    return call


def _is_finished(state: Mapping[str, Any] | None) -> bool:
    """Whether it is torchdata's of a whole pass: Accelerate says so with the last batch already."""
    return bool(state and state.get("_iterator_finished"))
