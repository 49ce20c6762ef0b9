"""Worker: what the user's ``train`` is given: a training loop that also says how it goes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast.cluster.placement import Placement
from holdfast.cluster.train.build import BuiltModel
from holdfast.cluster.train.forecast import IdsFunction
from holdfast.cluster.train.loop import TrainingLoop
from holdfast.cluster.train.settings import LoopSettings
from holdfast.cluster.worker.exchange import SocketExchange
from holdfast.errors import ConfigurationError
from holdfast.runtime import SYSTEM

_REPORT_S = 0.25


class Worker(TrainingLoop):
    """One of the processes that compute gradients: the argument of ``train``.

    ``worker.model`` is the model, with each batch's rows as parameters of its tables; ``worker.index`` and
    ``worker.count`` say which part of the data is this one's. A ``Cluster`` makes it.

    Args:
        built: The model, without its large tables.
        placement: Where the tables' rows are.
        exchange: With the servers.
        settings: How to train.
        index: Which worker this is, from 0.
        count: How many there are.
        place: Where in the data to start, as an earlier worker's last push had it. None: at the beginning.
        steps: That were taken before: in synchronous training by the others, where this one joins them.
        needs_length: Whether the job must know how many samples there will be.
        report_steps: After so many steps it says how far it is, whatever the time.
    """

    def __init__(
        self,
        built: BuiltModel,
        placement: Placement,
        exchange: SocketExchange,
        settings: LoopSettings,
        *,
        index: int,
        count: int,
        place: bytes | None,
        steps: int = 0,
        needs_length: bool = False,
        report_steps: int | None = None,
    ) -> None:
        device = "cuda" if _is_on_gpu(built) else None
        super().__init__(built, placement, exchange, settings, index=index, count=count, device=device, place=place)
        self._sockets = exchange
        self._needs_length = needs_length
        self._report_steps = report_steps
        self._samples = self._batches = 0
        self._steps = max(self._steps, steps)
        self._first_step = self.steps
        self._expected_batches: int | None = None
        self._told_s = 0.0

    def batches(
        self, loader: Iterable[Any], *, epochs: int | None = 1, ids: IdsFunction | None = None
    ) -> Iterator[Any]:
        """The loader's batches, each with its rows in the model; after a restart they go on behind the last push.

        Within ``evaluating()`` it is one pass over the loader, from which nothing is remembered.

        Args:
            loader: As for an ordinary loop; a DataLoader, or an iterable with a state.
            epochs: Passes over the data, counted from the very start of the training. None: unlimited.
            ids: From a batch to the ids of each table, by the name of its module; otherwise they are found in it.
        """
        found = super().batches(loader, epochs=epochs, ids=ids)
        if self._is_evaluating:
            yield from found
            return
        self._expect(loader, epochs)
        for batch in found:
            self._samples += _samples(batch)
            self._batches += 1
            yield batch

    def step(self, loss: Tensor | float | None = None, *, scaler: Any = None) -> None:
        """End a step: gradients go out to the servers, and are gone here.

        Args:
            loss: To be averaged over steps.
            scaler: A GradScaler that scaled the loss; it leaves the step out where it finds an overflow.
        """
        super().step(loss, scaler=scaler)
        now_s = SYSTEM.monotonic_s()
        is_due = self._report_steps is not None and self.steps % self._report_steps == 0
        if is_due or now_s - self._told_s >= _REPORT_S:
            self._told_s = now_s
            self._sockets.tell(self.report())

    def report(self, *, sums: bool = False) -> bytes:
        """How it goes, as JSON.

        Args:
            sums: With what was counted for loss and AUC, in a form that adds up over workers.
        """
        taken = self.steps - self._first_step
        per_batch, batches = self._samples / max(1, self._batches), self._expected_batches
        found: dict[str, Any] = {
            "steps": self.steps,
            "samples": self._samples,
            "samples_per_step": self._samples / taken if taken else None,
            "expected_samples": per_batch * batches if per_batch and batches else None,
            "behind": self.settings.ahead + self._sockets.unapplied,
            "loss": self._training_metrics.loss,
            "skipped": self.skipped,
        }
        if sums:
            found["sums"] = self._training_metrics.to_plain()
        return json.dumps(found).encode()

    def _expect(self, loader: Iterable[Any], epochs: int | None) -> None:
        try:
            batches = len(loader)  # type: ignore[arg-type]
        except TypeError:
            batches = 0
        self._expected_batches = batches * epochs if batches and epochs else None
        if self._needs_length and self._expected_batches is None:
            raise ConfigurationError(
                "a PLS budget needs the length of the training, which the loader does not report: pass hf.PLS(0.1, "
                "total_samples=...)"
            )


def _is_on_gpu(built: BuiltModel) -> bool:
    return any(each.device.type == "cuda" for each in built.dense)


def _samples(batch: Any) -> int:
    """Of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    elif hasattr(batch, "__dict__") and not isinstance(batch, tuple | list):
        batch = tuple(vars(batch).values())
    if isinstance(batch, tuple | list):
        return next((found for each in batch if (found := _samples(each))), 0)
    return 0
