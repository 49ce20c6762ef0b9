"""A synthetic click stream with Criteo Kaggle's cardinalities, skew, drift and click rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from benchmarks.data.hidden import HiddenModel, Probe
from benchmarks.data.popularity import Popularity
from benchmarks.data.schema import DENSE_FIELDS, KAGGLE_CARDINALITIES, Batch, scaled_cardinalities
from benchmarks.data.shard import Shard

FIELDS = len(KAGGLE_CARDINALITIES)
DRAWS_PER_SAMPLE = FIELDS + DENSE_FIELDS + 1  # 32-bit numbers; the last decides the label
DRAWS_PER_COUNT = 8  # Philox gives 256 bits each time it counts on; 40 draws are exactly 5 counts
PROBE_POINTS = 40
PROBE_SAMPLES = 500  # at each point


class ClickStream:
    """Endless samples; number i is a function of ``seed``, ``scale``, ``drift_samples`` and i, and of nothing else.

    ``scale`` multiplies the cardinalities. ``drift_samples`` is how long a popular value stays popular; the
    popularity of the fields with fewer than 1,000 values does not change.
    """

    def __init__(self, seed: int = 0, scale: float = 1.0, *, drift_samples: int = 20_000_000) -> None:
        if drift_samples < 1:
            raise ValueError(f"drift_samples is {drift_samples}: take the number of samples a popular value lasts")
        self.seed = seed
        self.cardinalities = scaled_cardinalities(scale)
        rng = np.random.default_rng([seed, 1])
        self._popularity = Popularity(rng, self.cardinalities, drift_samples)
        self._hidden = HiddenModel(rng, self._probe(drift_samples))

    def batch(self, index: int, batch_size: int) -> Batch:
        """Batch ``index`` of the stream cut into batches of ``batch_size``."""
        return self.samples(index * batch_size, batch_size)

    def samples(self, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count``."""
        uniform = self._uniform(start, count)
        ids, dense = self._features(uniform, start)
        clicked = uniform[:, -1] < self._hidden.probabilities(ids, dense)
        return Batch(torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(clicked).float())

    def _uniform(self, start: int, count: int) -> NDArray[np.float64]:
        """The stream's randomness at its place: a counter-based generator has no history."""
        counter = start * DRAWS_PER_SAMPLE // DRAWS_PER_COUNT
        words = np.random.Philox(key=self.seed, counter=counter).random_raw(count * DRAWS_PER_SAMPLE // 2)
        return words.view(np.uint32).reshape(count, DRAWS_PER_SAMPLE) * np.float64(2.0**-32)

    def _features(self, uniform: NDArray[np.float64], start: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids = self._popularity.ids(uniform[:, :FIELDS], np.arange(start, start + len(uniform)))
        dense = -np.log1p(-uniform[:, FIELDS:-1])  # the logarithm of a count falls off about like this
        return ids, dense.astype(np.float32)

    def _probe(self, drift_samples: int) -> Probe:
        """Samples from all over the first ``drift_samples``: no popular value counts for more than its time."""
        starts = [point * drift_samples // PROBE_POINTS for point in range(PROBE_POINTS)]
        parts = [self._features(self._uniform(start, PROBE_SAMPLES), start) for start in starts]
        ids, dense = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Probe(ids=ids, dense=dense)


class ClickDataset(IterableDataset[Batch]):
    """The first ``samples`` of a stream as batches, the last one shorter where they do not divide.

    For ``StatefulDataLoader(dataset, batch_size=None)``: each worker makes every n-th batch, and the loader hands
    them out in the stream's order. Its state is the number of the next batch.
    """

    def __init__(self, stream: ClickStream, *, batch_size: int, samples: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: take at least 1")
        self._stream = stream
        self._batch_size = batch_size
        self._samples = samples
        self._next = 0
        self._loaded: int | None = None

    def __len__(self) -> int:
        return -(-self._samples // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        # Not a generator: the loaded place is used up by this call, not by the first next(), which may never come.
        shard = Shard.of_this_process()
        self._next = shard.index if self._loaded is None else self._loaded
        self._loaded = None
        return self._batches(shard)

    def _batches(self, shard: Shard) -> Iterator[Batch]:
        while self._next < len(self):
            start = self._next * self._batch_size
            batch = self._stream.samples(start, min(self._batch_size, self._samples - start))
            self._next += shard.count
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where to go on."""
        return {"next_batch": self._next, "shards": Shard.of_this_process().count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter`` goes on there; the one after it starts from the beginning."""
        Shard.of_this_process().check(state)
        self._loaded = self._next = int(state["next_batch"])
