"""The baseline that differences refer to, kept on the devices of its tables, so that these make the differences.

What is kept is what the agent stores: records of the rows at the step of the baseline, and the rows that no record
holds. It counts once that checkpoint is committed, and as long as the next saves stand on it; a save that stands on
another one, or on none, leaves the differences to the agent, which checks what the others were made from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.side_streams import Copy, Mark, SideStreams
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.codec.quantized import Quantized
from holdfast.kernels.quantize import tensors
from holdfast.kernels.quantize.baseline import BaselineRows, baseline_bytes, can_be_baseline
from holdfast.types import Kind

logger = logging.getLogger("holdfast")

_MOST_FAILURES = 1
_LEAST_ESCAPES, _ESCAPES_SHARE = 1024, 256  # rows that no record holds: room for so many, and one in so many


class _Kept(NamedTuple):
    """A table's rows in a baseline, and how many no record holds, which is on its way."""

    rows: BaselineRows
    escapes: Tensor  # one number, in host memory
    known: Mark

    def is_usable(self) -> bool | None:
        """Whether there was room for everything; None: not known yet."""
        return int(self.escapes) <= len(self.rows.escapes) if self.known.is_past() else None


class DeviceBaselines:
    """One baseline at a time, in memory of a set size on each device. Sees saves begin and end (``SaveObserver``)."""

    def __init__(self, streams: SideStreams, sizes: Mapping[torch.device, int]) -> None:
        self._streams = streams
        self._left = dict(sizes)
        self._room: dict[int, BaselineRows | None] = {}  # by table; None: there is none
        self._kept: dict[int, _Kept] = {}
        self._checkpoint: str | None = None  # that they are of, once it is committed
        self._pending: str | None = None  # that they will be of
        self._whole: set[int] = set()  # tables that the save in progress holds whole, above the baseline
        self._used = False  # by the save in progress
        self._failed = False  # the last save that used it did: the next one does without
        self._failures = 0  # such saves, above this baseline
        self._told_room = False
        self._told_missing = False

    def reserve(self, table: int, weight: Tensor, codec: Quantized, difference: Quantized, first: int) -> None:
        """Take the memory for a table's rows from ``first`` on, as far as there is some."""
        if table in self._room or not self._can_encode(weight, codec, difference):
            return
        self._room[table] = base = self._reserved(table, weight, codec, first) if len(weight) else None
        if base is not None:
            one = base._replace(records=base.records[:2], first=0)
            tensors.keep_baseline(weight[:1], one)
            tensors.warm_up(weight[:1], difference.scheme, one)

    def keep(self, table: int, weight: Tensor, codec: Quantized, difference: Quantized, first: int, stop: int) -> None:
        """The baseline that is being taken holds these rows of a table."""
        self.reserve(table, weight[first:stop], codec, difference, first)
        base = self._room.get(table)
        if base is None or base.scheme != codec.scheme or (base.first, base.rows) != (first, stop - first):
            return
        found = tensors.keep_baseline(weight[first:stop], base)
        numbers = self._streams.host_numbers(1)
        self._streams.follow(weight.device)
        self._streams.copy(weight.device, [Copy(numbers, found)])
        # Another object for each baseline: what was made for the last one is made anew.
        self._kept[table] = _Kept(base._replace(), numbers, self._streams.mark(weight.device))

    def of(self, table: int, checkpoint: str | None) -> BaselineRows | None:
        """What differences from a checkpoint can be made from; None: they are the agent's to make."""
        if checkpoint is None or self._failed or self._failures > _MOST_FAILURES:
            return None
        if checkpoint != self._checkpoint:
            self._tell_missing(f"checkpoint {checkpoint}, which they refer to, is not on the device")
            return None
        kept = self._kept.get(table)
        if kept is None:
            return None
        usable = kept.is_usable()
        if usable is False:
            self._tell_missing(f"{int(kept.escapes)} rows of a table, in it, cannot be encoded")
        self._used = self._used or bool(usable)
        return kept.rows if usable else None

    def take(self, checkpoint: str | None) -> None:
        """A snapshot is taken: of a baseline of this name, or of what changed since one."""
        self._whole.clear()
        self._used = False
        self._pending = checkpoint
        if checkpoint is not None:
            self._kept.clear()
            self._checkpoint = None

    def hold_whole(self, table: int) -> None:
        """The save in progress, which is no baseline, holds a table whole: later ones stand on that."""
        self._whole.add(table)

    def begin(self, kind: Kind) -> None:
        """``take`` follows where it is a checkpoint."""

    def committed(self, kind: Kind, state: Sequence[PieceDigest]) -> None:
        """The save in progress is one that others stand on."""
        if kind is Kind.PRIORITY:
            return
        self._failed = False
        if kind is Kind.FULL:
            self._checkpoint, self._failures = self._pending, 0
        for table in self._whole:
            self._kept.pop(table, None)
        self._pending = None
        self._whole.clear()

    def failed(self, kind: Kind) -> None:
        """Nothing stands on it. What is kept of a baseline is of no use then.

        The agent may have refused what was made here: the next save tries without, and after a second one all do.
        """
        if kind is Kind.PRIORITY:
            return
        self._failed = self._used
        self._failures += self._used
        if self._pending is not None:
            self._kept.clear()
        self._pending = None
        self._whole.clear()

    def _can_encode(self, weight: Tensor, codec: Quantized, difference: Quantized) -> bool:
        return can_be_baseline(codec.scheme) and all(
            tensors.is_cheap(weight, each.scheme) for each in (codec, difference)
        )

    def _reserved(self, table: int, weight: Tensor, codec: Quantized, first: int) -> BaselineRows | None:
        (rows, dim), device = weight.shape, weight.device
        escapes = min(rows, _LEAST_ESCAPES + rows // _ESCAPES_SHARE)
        sizes = baseline_bytes(codec.scheme, dim, rows, escapes)
        if sum(sizes) > self._left.get(device, 0):
            self._tell_room(f"it would take {sum(sizes)} bytes more of Settings(device_baseline_bytes=...)", table)
            return None
        try:
            records, exact = (self._streams.reserve(device, size) for size in sizes)
        except torch.OutOfMemoryError:
            self._tell_room(f"{device} has no {sum(sizes) / 2**20:.1f} MiB left", table)
            return None
        self._left[device] -= sum(sizes)
        return BaselineRows(
            records.view(rows + 1, -1), exact.view(torch.float32).view(escapes, dim), codec.scheme, first
        )

    def _tell_room(self, why: str, table: int) -> None:
        if not self._told_room:
            self._told_room = True
            logger.warning(
                "the agent makes the differences of table %d, and maybe of others, because what they refer to has no "
                "room on the device: %s",
                table,
                why,
            )

    def _tell_missing(self, why: str) -> None:
        if not self._told_missing:
            self._told_missing = True
            logger.info("the agent makes the differences until the next baseline: %s", why)
