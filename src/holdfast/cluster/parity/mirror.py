"""Copies of other servers' dense parts: the same gradients in the same kernel, or what several pushes have left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.payload import Words
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Floats
from holdfast.cluster.placement import DensePiece
from holdfast.cluster.shard import DenseShard
from holdfast.kernels.records import words_of
from holdfast.types import UpdateRule


def dense_columns(dense: DenseShard) -> Iterator[NDArray[np.float32]]:
    """All that a dense part holds, in the order of its words: values, then the slots of each part."""
    yield dense.values
    for part in dense.piece.parts:
        for slot in dense.rule.slots:
            yield dense.slots[part.name][slot.name]


def dense_words(dense: DenseShard) -> Words:
    """A copy of all that a dense part holds."""
    return np.concatenate([column.ravel() for column in dense_columns(dense)]).view(np.uint32)


def put_dense_words(dense: DenseShard, words: Words) -> None:
    """Take what another copy of the dense part held."""
    values, at = words.view(np.float32), 0
    for column in dense_columns(dense):
        column[...] = values[at : at + column.size].reshape(column.shape)
        at += column.size


def dense_size(piece: DensePiece, rule: UpdateRule) -> int:
    """How many words a dense part has."""
    return sum(part.rows * words_of(rule, part.width) for part in piece.parts)


class Mirrors:
    """The dense parts that one server mirrors.

    Args:
        layout: Which they are.
        server: Who keeps them.
        rule: How dense parts are updated.
    """

    def __init__(self, layout: RingLayout, server: int, rule: UpdateRule) -> None:
        placement = layout.placement
        self._layout = layout
        self._shards = {
            each: DenseShard(placement.plan, placement.dense[each], rule) for each in layout.mirrored(server)
        }

    def take(self, server: int, words: Words) -> None:
        """All that a server's dense part holds."""
        put_dense_words(self._shards[server], words)

    def apply(self, server: int, gradients: Floats, *, lr: float) -> None:
        """What that server applied to its dense part."""
        self._shards[server].apply(gradients, lr=lr)

    def give(self, stripes: StripeSet) -> Words:
        """Copies of the dense parts that are among the stripes, one after another."""
        found = [dense_words(self._shards[server]) for server in self._layout.dense_of(stripes)]
        return np.concatenate([*found, np.empty(0, np.uint32)])
