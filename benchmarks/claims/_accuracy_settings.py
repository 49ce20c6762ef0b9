"""What a restore does to the rows: by which codec, how often, and done in place.

A row comes back from a checkpoint as its codec gives it back, whatever stands beside it, so a restore can be had
without a store, a hundred times in seconds; a test holds this against real saves and resumptions, bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import holdfast as hf
from holdfast.codec import Baseline, Difference
from holdfast.codec.choice import weight_codec
from holdfast.codec.quantized import Quantized

Rows = NDArray[np.float32]

BASELINE_BITS = 8


class Perturbation(ABC):
    """Changes a training's rows at each restore."""

    def take_baseline(self, rows: Tensor) -> None:  # noqa: B027 - not every one needs it
        """The checkpoints to come stand on this moment's; a job that was restored goes on with it."""

    def touch(self, ids: Tensor) -> None:  # noqa: B027
        """A step moves these rows."""

    @abstractmethod
    def restore(self, rows: Tensor) -> None:
        """The rows come back from a checkpoint of this moment."""


class LastPlace(Perturbation):
    """Every value moves up to the next one that float32 holds: what no job would notice."""

    def restore(self, rows: Tensor) -> None:
        rows.copy_(torch.nextafter(rows, torch.tensor(math.inf)))


class Quantization(Perturbation):
    """Rows in few bits: those that moved since the baseline as they are now, the others as the baseline has them."""

    def __init__(self, precision: hf.Bits) -> None:
        self._codec = weight_codec(precision.bits, precision.method)

    def take_baseline(self, rows: Tensor) -> None:
        self._baseline = self._stored(rows.numpy())
        self._touched = torch.zeros(len(rows), dtype=torch.bool)

    def touch(self, ids: Tensor) -> None:
        self._touched[ids] = True

    def restore(self, rows: Tensor) -> None:
        values, touched = rows.numpy(), np.flatnonzero(self._touched.numpy())
        moved = self._changed(values[touched], self._baseline[touched])
        values[:] = self._baseline
        values[touched] = moved

    def _stored(self, rows: Rows) -> Rows:
        """What a baseline gives back."""
        found: Rows = self._codec.decode(self._codec.encode(rows), rows.shape[1])
        return found

    def _changed(self, rows: Rows, baseline_rows: Rows) -> Rows:
        """What a delta gives back."""
        return self._stored(rows)


class Differences(Quantization):
    """The same with a baseline in 8 bits and differences from it in few."""

    def __init__(self, precision: hf.Bits) -> None:
        super().__init__(hf.Bits(BASELINE_BITS, method=precision.method))
        inner = weight_codec(precision.bits, precision.method)
        assert isinstance(inner, Quantized)
        self._difference = Difference(inner=inner, baseline=Baseline(checkpoint="", digest=""))

    def _changed(self, rows: Rows, baseline_rows: Rows) -> Rows:
        codec = self._difference
        encoded = codec.encode(rows, baseline_rows)
        found: Rows = codec.decode(encoded, baseline_rows, codec.baseline, rows.shape[1])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A perturbation and how often it comes, evenly spread over the training."""

    restores: int
    precision: hf.Bits | None  # None: the control
    is_bar: bool = True  # one of the paper's thresholds; others are for the plot

    @property
    def perturbation(self) -> Perturbation:
        """A fresh one."""
        if self.precision is None:
            return LastPlace()
        return Differences(self.precision) if self.precision.difference else Quantization(self.precision)

    def steps(self, steps: int) -> list[int]:
        """The steps before which a restore comes."""
        return sorted({steps * number // (self.restores + 1) for number in range(1, self.restores + 1)})


def _published(bits: int, restores: int, *, is_bar: bool = True) -> Setting:
    return Setting(restores=restores, precision=hf.Bits(bits, method="published"), is_bar=is_bar)


# With 8 bits the paper's codec is ours. The thresholds are those of its section 5.2.1.
SETTINGS: Mapping[str, Setting] = {
    "control_x1": Setting(restores=1, precision=None, is_bar=False),
    "control_x20": Setting(restores=20, precision=None, is_bar=False),
    "published_2x1": _published(2, 1),
    "published_3x3": _published(3, 3),
    "published_4x20": _published(4, 20),
    "published_8x100": _published(8, 100),
    "default_2x1": Setting(restores=1, precision=hf.Bits(2)),
    "default_3x3": Setting(restores=3, precision=hf.Bits(3)),
    "default_4x20": Setting(restores=20, precision=hf.Bits(4)),
    "difference_2x20": Setting(restores=20, precision=hf.Bits(2, difference=True)),
    "difference_3x20": Setting(restores=20, precision=hf.Bits(3, difference=True), is_bar=False),
    "published_2x2": _published(2, 2, is_bar=False),
    "published_2x3": _published(2, 3, is_bar=False),
}
