"""TrainingLoop: what a training function holds: the model, its batches, its steps. It knows no sockets."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.rng import restore_rng
from holdfast.cluster.placement import Placement
from holdfast.cluster.train.buffers import Buffers
from holdfast.cluster.train.build import BuiltModel, move
from holdfast.cluster.train.dense import DenseVector
from holdfast.cluster.train.devices import HostCopies, to_host
from holdfast.cluster.train.exchange import Exchange, Floats, PushedStep
from holdfast.cluster.train.fetcher import Fetcher, nothing_of
from holdfast.cluster.train.finite import all_finite, not_finite, sum_of
from holdfast.cluster.train.forecast import Forecast, IdsFunction
from holdfast.cluster.train.metrics import Metrics
from holdfast.cluster.train.optimizer import WorkerOptimizer
from holdfast.cluster.train.place import Place, PlaceEncoder
from holdfast.cluster.train.prefetcher import Prefetched, Prefetcher
from holdfast.cluster.train.reading import Reading, place_of, read_batches
from holdfast.cluster.train.set_aside import SetAside
from holdfast.cluster.train.settings import LoopSettings
from holdfast.cluster.train.table import Table
from holdfast.errors import ConfigurationError

logger = logging.getLogger("holdfast")


class TrainingLoop:
    """One worker's training. Within a step nothing moves: rows and dense values are those of its first batch.

    Args:
        built: The model.
        placement: Of its tables.
        exchange: With the servers.
        settings: How to train.
        index: Which worker this is.
        count: How many there are.
        device: Where to train; otherwise where the model was built.
        place: Where to start, as an earlier worker's last push had it.
    """

    def __init__(
        self,
        built: BuiltModel,
        placement: Placement,
        exchange: Exchange,
        settings: LoopSettings,
        *,
        index: int = 0,
        count: int = 1,
        device: torch.device | str | None = None,
        place: bytes | None = None,
    ) -> None:
        self.model: nn.Module = built.module
        self.index = index
        self.count = count
        self.settings = settings
        self.skipped = 0  # steps or batches that were left out, by on_nan and on_bad_ids
        self._device = move(built, device)
        self._built = built
        self._exchange = exchange
        self._buffers = Buffers(built.module)
        self._dense = DenseVector(built.dense, self._device)
        self._fetcher = Fetcher(built.tables, placement, exchange, self._device)
        self._forecast = Forecast(built.tables)
        self._place = None if place is None else Place.from_bytes(place)
        self._encoder = PlaceEncoder()
        self._steps = 0 if self._place is None else self._place.steps
        self._reading: Reading | None = None
        self._current: Prefetched | None = None
        self._prefetcher: Prefetcher | None = None  # of the current batch
        self._is_used = True  # the current batch is in a step, or none is current
        self._is_evaluating = False
        self._metrics = self._training_metrics = Metrics()
        for table in built.tables:
            table.source = self
        self.optimizer = WorkerOptimizer(
            [each.parameter for each in built.tables],
            built.dense,
            lr_tables=settings.lr_tables,
            lr_dense=settings.lr_dense,
            push=self._push,
        )

    @property
    def steps(self) -> int:
        """Steps pushed, across all restarts."""
        return self._steps

    # ---- batches ---------------------------------------------------------------------------------------------------

    def batches(
        self, loader: Iterable[Any], *, epochs: int | None = 1, ids: IdsFunction | None = None
    ) -> Iterator[Any]:
        """The loader's batches, each with its rows in the model; after a restart they go on behind the last push.

        Batches are read ahead, so each must have memory of its own. Within ``evaluating()`` it is one pass over the
        loader, from which nothing is remembered.

        Args:
            loader: As for an ordinary loop; a DataLoader, or an iterable with a state.
            epochs: Passes over the data, counted from the very start of the training. None: unlimited.
            ids: From a batch to the ids of each table, by the name of its module; otherwise they are found in it.
        """
        if self._is_evaluating:
            return self._evaluation_batches(loader, ids)
        return self._training_batches(self._read(loader, epochs, ids))

    def step(self, loss: Tensor | float | None = None, *, scaler: Any = None) -> None:
        """End a step: gradients go out to the servers, and are gone here. After ``optimizer.step()`` it only counts.

        Args:
            loss: To be averaged over steps.
            scaler: A GradScaler that scaled the loss; it leaves the step out where it finds an overflow.
        """
        if loss is not None:
            self._metrics.add_loss(float(loss.detach()) if isinstance(loss, Tensor) else float(loss))
        if scaler is None:
            if not self._is_pushed:
                self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
            self._clear()

    def metrics(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch's scores for AUC.

        Args:
            scores: Logits or probabilities.
            labels: 1 or 0 each.
        """
        self._metrics.add(scores, labels)

    @property
    def measured(self) -> Metrics:
        """What was counted so far; within ``evaluating()``, since it began."""
        return self._metrics

    @contextmanager
    def evaluating(self) -> Iterator[Metrics]:
        """Read without training: no gradients, the model in its mode for evaluation, the newest dense parameters.

        Afterwards all is as before, random generators included. Gives what ``metrics()`` counts meanwhile.
        """
        if self._is_evaluating:
            raise ConfigurationError("evaluating() is already active; leave it before it is entered again")
        aside = SetAside(self._built, self._dense)
        before = (self._current, self._prefetcher, self._metrics)
        self._current, self._prefetcher, self._metrics, self._is_evaluating = None, None, Metrics(), True
        try:
            self._install_newest()
            self.model.eval()
            with torch.no_grad():
                yield self._metrics
        finally:
            self._current, self._prefetcher, self._metrics = before
            self._is_evaluating = False
            aside.bring_back()

    @property
    def has_dense(self) -> bool:
        """Whether the dense parameters here came from servers; before its first batch a model is as it begins."""
        return self._dense.is_installed

    def dense_values(self) -> Floats:
        """A copy of the dense vector as it is here."""
        return to_host(self._dense.values())

    def place(self) -> bytes:
        """From where the next step starts."""
        return self._place_now(self._steps).to_bytes()

    # ---- what tables ask for ---------------------------------------------------------------------------------------

    def fetch(self, table: Table, ids: Tensor) -> Tensor:
        """Rows that nobody foresaw; what a table asks for.

        Args:
            table: The one that asks.
            ids: Each once, ascending.
        """
        return self._fetcher.fetch(table, ids)

    def surprised(self, table: Table, ids: Tensor) -> None:
        """Learn from what was not foreseen; what a table says.

        Args:
            table: The one that was called.
            ids: What it was called with.
        """
        if self._current is None:  # evaluating without batches(): rows of earlier calls are of no use
            table.exchange(nothing_of(table, self._device))
        elif self._prefetcher is not None:
            self._forecast.learn(self._current.batch, table, ids, asks=self._prefetcher.ids is not None)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _read(self, loader: object, epochs: int | None, ids: IdsFunction | None) -> Reading:
        """Go on with a loader that was left in the middle, or begin one."""
        known = self._reading
        if known is not None and known.loader is loader and known.epochs == epochs:
            known.prefetcher.ids = ids
            return known
        reader = known.reader if known is not None and known.loader is loader else Reader(loader)
        place, self._place = self._place, None
        source = read_batches(reader, epochs, place, self._restore)
        self._reading = Reading(loader, epochs, reader, self._prefetcher_of(source, ids, dense=True))
        return self._reading

    def _restore(self, place: Place) -> None:
        if place.rng is not None:
            restore_rng(place.rng)
        self._buffers.restore(place.buffers)

    def _prefetcher_of(self, batches: Iterator[Any], ids: IdsFunction | None, *, dense: bool) -> Prefetcher:
        return Prefetcher(
            batches,
            self._fetcher,
            self._forecast,
            device=self._device,
            ids=ids,
            ahead=self.settings.ahead,
            dense=dense,
            counts_early=self.settings.counts_early,
        )

    def _training_batches(self, reading: Reading) -> Iterator[Any]:
        while True:
            self._pass_over()
            found = reading.prefetcher.next()
            if found is None:
                break
            self._current, self._prefetcher, self._is_used = found, reading.prefetcher, False
            if found.error is not None:
                self._leave_out(found.error)
                continue
            self._begin(found, reading.prefetcher)
            yield found.batch
        self._current = self._prefetcher = None

    def _evaluation_batches(self, loader: Iterable[Any], ids: IdsFunction | None) -> Iterator[Any]:
        prefetcher = self._prefetcher_of(iter(loader), ids, dense=False)
        try:
            while (found := prefetcher.next()) is not None:
                if found.error is not None:
                    raise found.error
                self._current, self._prefetcher = found, prefetcher
                for table, held in zip(self._built.tables, prefetcher.receive(found).held, strict=True):
                    table.hold(held, within_step=False)
                yield found.batch
        finally:
            self._current = self._prefetcher = None
            prefetcher.close()

    @property
    def _has_gradient(self) -> bool:
        return self._dense.has_gradient or any(table.has_gradient for table in self._built.tables)

    @property
    def _is_pushed(self) -> bool:
        """Whether the batch is in a step already, and nothing has come since."""
        return self._reading is not None and not self._is_evaluating and self._is_used and not self._has_gradient

    def _begin(self, found: Prefetched, prefetcher: Prefetcher) -> None:
        within_step = self._has_gradient
        arrived = prefetcher.receive(found)
        if not within_step and arrived.dense is not None:
            self._dense.install(arrived.dense)
        for table, held in zip(self._built.tables, arrived.held, strict=True):
            table.hold(held, within_step=within_step)

    def _leave_out(self, error: ConfigurationError) -> None:
        if self.settings.on_bad_ids == "raise":
            raise error
        self.skipped += 1
        logger.warning("a batch was left out: %s", error)

    def _pass_over(self) -> None:
        """The last batch was accumulated, or left out: it has no step of its own."""
        if not self._is_used and self._reading is not None:
            self._reading.pass_over()
        self._is_used = True

    def _install_newest(self) -> None:
        arrived = self._fetcher.receive(self._fetcher.request(self._fetcher.begin([]), dense=True))
        assert arrived.dense is not None
        self._dense.install(arrived.dense)
        for table in self._built.tables:
            table.hold(nothing_of(table, self._device), within_step=False)

    @torch.no_grad()
    def _push(self, lr_tables: float, lr_dense: float) -> None:
        if self._is_evaluating or self._reading is None:
            raise ConfigurationError("a step needs a batch: call step() in a loop over batches(loader)")
        groups, dense = self._fetcher.gradients(), self._dense.gradients()
        tensors = [dense, *(each.gradients for each in groups)]
        copies, total = HostCopies(tensors), sum_of(tensors)
        self._exchange.let_in()  # this and the place, while the device computes
        place = self._encoder.encode(self._place_after_step())
        if self.settings.on_nan != "push" and not all_finite(tensors, total):
            self._refuse()
            return
        self._steps += 1
        dense_array, *gradients = copies.arrays()
        self._exchange.push(
            PushedStep(
                keys=[each.keys for each in groups],
                gradients=gradients,
                dense=dense_array,
                lr_tables=lr_tables,
                lr_dense=lr_dense,
                place=place,
            )
        )
        self._clear()

    def _place_after_step(self) -> Place:
        """Also where the step is then left out: its batch does not come again either."""
        if not self._is_used and self._reading is not None:
            self._reading.complete()
        self._is_used = True
        return self._place_now(self._steps + 1)

    def _refuse(self) -> None:
        names = [each.name for each in self._built.plan.dense]
        error = not_finite(self._built.tables, list(zip(names, self._built.dense, strict=True)))
        if self.settings.on_nan == "raise":
            raise error
        self.skipped += 1
        logger.warning("a step was left out: %s", error)
        self._clear()

    def _clear(self) -> None:
        for table in self._built.tables:
            table.parameter.grad = None
        for each in self._built.dense:
            each.grad = None

    def _place_now(self, steps: int) -> Place:
        return place_of(self._reading, steps=steps, buffers=self._buffers.now())
