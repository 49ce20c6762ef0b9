"""Prefetcher: batches of a loader in their order, each with its rows asked for while earlier ones are trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from holdfast.cluster.train.devices import on_device
from holdfast.cluster.train.fetcher import Arrived, Fetcher, Request
from holdfast.cluster.train.forecast import Forecast, IdsFunction
from holdfast.errors import ConfigurationError

_OVER: Final = object()  # instead of a batch


@dataclass(slots=True)
class Prefetched:
    """A batch, and its rows on their way; or why there can be none."""

    batch: Any
    request: Request | None
    version: int  # of the forecast
    error: ConfigurationError | None = None


class Prefetcher:
    """Reads and asks ahead.

    Args:
        batches: In their order.
        fetcher: Asks for rows.
        forecast: Says which.
        device: Where batches go.
        ids: The user's function, instead of what the forecast has learnt.
        ahead: How many batches beyond the one that is trained on.
        dense: Whether the dense vector is asked for with each batch.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        fetcher: Fetcher,
        forecast: Forecast,
        *,
        device: torch.device,
        ids: IdsFunction | None,
        ahead: int,
        dense: bool,
    ) -> None:
        self._batches = batches
        self._fetcher = fetcher
        self._forecast = forecast
        self._device = device
        self.ids = ids
        self._ahead = ahead
        self._dense = dense
        self._queue: deque[Prefetched] = deque()
        self._is_over = False

    def next(self) -> Prefetched | None:
        """The next batch, once those beyond it are asked for; None at the end."""
        if self._queue and (request := self._queue[0].request) is not None:
            self._fetcher.expect(request)  # it is moved while those beyond it are read
        while not self._is_over and len(self._queue) <= self._ahead:
            batch = next(self._batches, _OVER)
            if batch is _OVER:
                self._is_over = True
            else:
                self._queue.append(self._prefetch(batch))
        return self._queue.popleft() if self._queue else None

    def receive(self, prefetched: Prefetched) -> Arrived:
        """Wait for its rows. Where more was learnt since they were asked for, the others come now, in one go."""
        assert prefetched.request is not None
        arrived = self._fetcher.receive(prefetched.request)
        if self.ids is None and prefetched.version != self._forecast.version:
            wanted = self._forecast.of(prefetched.batch, None)
            again = self._fetcher.receive(self._fetcher.request(wanted, dense=False))
            arrived.held = again.held
        return arrived

    def close(self) -> None:
        """Nothing more is wanted: take what is on its way."""
        while self._queue:
            request = self._queue.popleft().request
            if request is not None:
                self._fetcher.receive(request)

    def _prefetch(self, batch: Any) -> Prefetched:
        batch, version = on_device(batch, self._device), self._forecast.version
        try:
            request = self._fetcher.request(self._forecast.of(batch, self.ids), dense=self._dense)
        except ConfigurationError as error:  # it is raised in the batch's turn
            return Prefetched(batch, None, version, error)
        return Prefetched(batch, request, version)
