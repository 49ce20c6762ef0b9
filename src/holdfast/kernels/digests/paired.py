"""Copies byte strings and computes their SHA-256, two at a time: when one ends, the next takes its place.

Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.digests import Bytes, Copied
from holdfast.kernels.digests.messages import Message, copies_by
from holdfast.kernels.digests.rounds import compress_one, compress_two

_A, _B, _C, _D, _E, _F, _G, _H = range(8)
_ORDER = [_F, _E, _B, _A, _H, _G, _D, _C]  # of the words of a state, as the instructions have them


@compiled(["void(int64, int64, int64, int64)"])
def _advance(blocks: int, data: int, copy: int, state: int) -> None:
    compress_one(blocks, data, copy, state)


@compiled(["void(int64, int64, int64, int64, int64, int64, int64)"])
def _advance_both(blocks: int, data: int, copy: int, state: int, data2: int, copy2: int, state2: int) -> None:
    compress_two(blocks, data, copy, state, data2, copy2, state2)


def paired_copies(sources: Sequence[Bytes], targets: Sequence[Bytes], block_bytes: int) -> list[Copied]:
    """Without the GIL, where there is much to copy."""
    return copies_by(ended_in_pairs, sources, targets, block_bytes)


def ended_in_pairs(waiting: Iterator[Message]) -> Iterator[Message]:
    """The messages as they end, two of them always on their way."""
    first, second = next(waiting, None), next(waiting, None)
    while first is not None and second is not None:
        _take(min(first.blocks, second.blocks), [first, second])
        if not first.blocks:
            yield first
            first = next(waiting, None)
        if not second.blocks:
            yield second
            second = next(waiting, None)
    for left in (each for each in (first, second) if each is not None):
        while left.blocks:
            _take(left.blocks, [left])
        yield left


def _take(blocks: int, messages: Sequence[Message]) -> None:
    states: list[NDArray[np.uint32]] = [message.state[_ORDER] for message in messages]
    places = [
        address
        for message, state in zip(messages, states, strict=True)
        for address in (message.data, message.copy, state.ctypes.data)
    ]
    (_advance_both if len(messages) == 2 else _advance)(blocks, *places)
    for message, state in zip(messages, states, strict=True):
        message.state[_ORDER] = state
        message.skip(blocks)
