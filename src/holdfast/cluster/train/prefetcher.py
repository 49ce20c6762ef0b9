"""Prefetcher: batches of a loader in their order, each with its rows asked for while earlier ones are trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from holdfast.cluster.train.devices import on_device
from holdfast.cluster.train.fetcher import Arrived, Begun, Fetcher, Request
from holdfast.cluster.train.forecast import Forecast, IdsFunction
from holdfast.errors import ConfigurationError

_OVER: Final = object()  # instead of a batch


@dataclass(slots=True)
class _Read:
    """A batch whose rows are being counted; or why there can be none."""

    batch: Any
    begun: Begun | None
    version: int  # of the forecast
    error: ConfigurationError | None = None


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
        counts_early: Whether a batch more is read, as ``LoopSettings`` says.
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
        counts_early: bool | None,
    ) -> None:
        self._batches = batches
        self._fetcher = fetcher
        self._forecast = forecast
        self._device = device
        self.ids = ids
        self._ahead = ahead
        self._dense = dense
        self._counts_early = device.type == "cuda" and ahead > 0 if counts_early is None else counts_early
        self._queue: deque[Prefetched] = deque()
        self._early: _Read | None = None
        self._is_over = False

    def next(self) -> Prefetched | None:
        """The next batch, once those beyond it are asked for; None at the end."""
        if self._queue and (request := self._queue[0].request) is not None:
            self._fetcher.expect(request)  # it is moved while those beyond it are read
        while len(self._queue) <= self._ahead and (read := self._next_read()) is not None:
            self._queue.append(self._asked(read))
        if self._counts_early and self._early is None:
            self._early = self._read()
        return self._queue.popleft() if self._queue else None

    def receive(self, prefetched: Prefetched) -> Arrived:
        """Wait for its rows. Where more was learnt since they were asked for, the others come now, in one go."""
        assert prefetched.request is not None
        arrived = self._fetcher.receive(prefetched.request)
        if self.ids is None and prefetched.version != self._forecast.version:
            wanted = self._forecast.of(prefetched.batch, None)
            again = self._fetcher.receive(self._fetcher.request(self._fetcher.begin(wanted), dense=False))
            arrived.held = again.held
        return arrived

    def close(self) -> None:
        """Nothing more is wanted: take what is on its way."""
        while self._queue:
            request = self._queue.popleft().request
            if request is not None:
                self._fetcher.receive(request)

    def _next_read(self) -> _Read | None:
        """The one whose rows are counted already, or one more; None at the end."""
        early, self._early = self._early, None
        return early or self._read()

    def _read(self) -> _Read | None:
        batch = _OVER if self._is_over else next(self._batches, _OVER)
        if batch is _OVER:
            self._is_over = True
            return None
        return self._begun(on_device(batch, self._device))

    def _begun(self, batch: Any) -> _Read:
        version = self._forecast.version
        try:
            return _Read(batch, self._fetcher.begin(self._forecast.of(batch, self.ids)), version)
        except ConfigurationError as error:  # it is raised in the batch's turn
            return _Read(batch, None, version, error)

    def _asked(self, read: _Read) -> Prefetched:
        if self.ids is None and read.version != self._forecast.version:
            read = self._begun(read.batch)  # more was learnt since it was read
        if read.begun is None:
            return Prefetched(read.batch, None, read.version, read.error)
        try:
            return Prefetched(read.batch, self._fetcher.request(read.begun, dense=self._dense), read.version)
        except ConfigurationError as error:  # an id that no table has
            return Prefetched(read.batch, None, read.version, error)
