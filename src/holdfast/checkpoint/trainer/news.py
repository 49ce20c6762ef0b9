"""Whether state that is no table's differs from the last checkpoint, whatever changed it.

Of what all ranks share, the first one knows; of tiles of DTensors, whoever stores them.

Nothing is checked between saves: the agent digests what it stores, and live state is digested on demand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.capture import Capture
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of
from holdfast.checkpoint.wire.state_digests import PieceDigest, digest_of
from holdfast.format.tree import EncodedTree, TreeBuilder, tiles_in
from holdfast.types import Kind

_TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A state tree: its skeleton, how many tensors it has, and digests of their bytes, as far as they are known."""

    skeleton: bytes
    tensors: int
    digests: tuple[PieceDigest, ...] = ()

    @property
    def training(self) -> tuple[str, int]:
        """What the skeleton says of the training, as text: 1, 1.0 and true differ; and the number of tiles."""
        fields = dict(json.loads(self.skeleton)["root"]["dict"])
        return json.dumps(fields.get(_TRAINING), sort_keys=True), tiles_in(self.skeleton)

    def digests_outside(self, others: range) -> Iterator[PieceDigest]:
        """Those of all tensors but these, counted without the skeleton."""
        return (each for each in self.digests if each.tensor and each.tensor - 1 not in others)


class SharedNews:
    """Compares a training with its last checkpoint. The reader's position and random numbers do not count."""

    def __init__(self, capture: Capture, *, leads: bool) -> None:
        self._capture = capture
        self._leads = leads  # this rank saves what all ranks share
        self._pending: _Stored | None = None
        self._stored: _Stored | None = None

    def snapshot(self, captured: Captured) -> None:
        """Remember what is being saved."""
        skeleton, *tensors = captured.tensors
        self._pending = _Stored(skeleton=bytes(skeleton.numpy()), tensors=len(tensors))

    def begin(self, kind: Kind) -> None:
        """A save begins; ``snapshot`` follows where it is a checkpoint."""
        self._pending = None

    def failed(self, kind: Kind) -> None:
        """It failed: the last checkpoint is still the one before."""
        self._pending = None

    def committed(self, kind: Kind, digests: Sequence[PieceDigest]) -> None:
        """The snapshot is committed, and these are digests of its state; none where they are not known."""
        if kind is Kind.PRIORITY:
            return
        pending, self._pending = self._pending, None
        known = tuple(digests)
        if pending is not None and known:
            self._stored = _Stored(skeleton=pending.skeleton, tensors=pending.tensors, digests=known)
        else:
            self._stored = None

    def restored(self) -> None:
        """The live state came from the checkpoint that training continues from."""
        live = self._live()
        digests = tuple(_digested(number, tensor) for number, tensor in enumerate(live.tensors, start=1))
        self._stored = _Stored(skeleton=live.skeleton, tensors=len(live.tensors), digests=digests)

    def exist(self) -> bool:
        """Whether the training differs from the checkpoint, or this is unknown."""
        if self._stored is None:
            return True
        tiles = len(self._capture.tiles())
        own = len(self._live().tensors)
        others = self._stored.tensors - own
        if others < 0:
            return True
        live = self._live(others)
        if _Stored(skeleton=live.skeleton, tensors=len(live.tensors)).training != self._stored.training:
            return True
        known = self._stored.digests_outside(range(own - tiles, own - tiles + others))
        return any(_differs(live.tensors, each) for each in known)

    def _live(self, others: int = 0) -> EncodedTree:
        """The training as it is now, with so many other tensors between its own, the first, and tiles, the last."""
        training, builder = self._capture.take_apart() if self._leads else (None, TreeBuilder())
        tree = {} if training is None else {_TRAINING: training}
        tiles = self._capture.tiles()
        encoded = builder.finish({**tree, "others": [torch.empty(0)] * others}, tiles=len(tiles))
        return EncodedTree(skeleton=encoded.skeleton, tensors=[*encoded.tensors, *tiles])


def _differs(tensors: Sequence[Tensor], known: PieceDigest) -> bool:
    live = _bytes(tensors[known.tensor - 1])[known.start : known.start + known.length]
    return digest_of(live) != known.digest


def _digested(number: int, tensor: Tensor) -> PieceDigest:
    data = _bytes(tensor)
    return PieceDigest(tensor=number, start=0, length=len(data), digest=digest_of(data))


def _bytes(tensor: Tensor) -> memoryview:
    return bytes_of(tensor).cpu().numpy().data
