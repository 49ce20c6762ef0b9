"""Copies byte strings and computes their SHA-256, sixteen at a time: when one ends, the next takes its place.

Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.digests import Bytes
from holdfast.kernels.digests.constants import BLOCK_BYTES, START
from holdfast.kernels.digests.messages import Message, copies_by
from holdfast.kernels.digests.paired import ended_in_pairs
from holdfast.kernels.digests.sixteen_rounds import LANE_WORDS, LANES, compress_sixteen
from holdfast.kernels.memory import give_way

_FEW = 8  # messages that pairs take no longer for
# Half a millisecond. Threads that wait for a disk have something to give it when they wake up; where all processors are
# busy here, Linux would let them wait for another 3 ms.
_TURN_BLOCKS = 2048


@compiled(["void(int64, int64[:, ::1], uint32[:, ::1])"])
def _advance_all(blocks: int, lanes: NDArray[np.int64], states: NDArray[np.uint32]) -> None:
    for start in range(0, blocks, _TURN_BLOCKS):
        compress_sixteen(min(_TURN_BLOCKS, blocks - start), lanes.ctypes.data, states.ctypes.data)
        give_way()


def sixteen_copies(sources: Sequence[Bytes], targets: Sequence[Bytes]) -> list[bytes]:
    """Without the GIL, where there is much to copy."""
    return copies_by(_ended, sources, targets)


def _ended(waiting: Iterator[Message]) -> Iterator[Message]:
    """The messages as they end, sixteen of them on their way as long as there are so many."""
    working = list(islice(waiting, LANES))
    while len(working) > _FEW:
        _take(min(message.blocks for message in working), working)
        yield from (message for message in working if not message.blocks)
        working = [message for message in working if message.blocks]
        working += islice(waiting, LANES - len(working))
    yield from ended_in_pairs(chain(working, waiting))


def _take(blocks: int, messages: Sequence[Message]) -> None:
    """Of each message so many blocks; lanes without one stay where they are, in a block of their own."""
    spare = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    lanes = np.full((LANES, LANE_WORDS), (spare.ctypes.data, spare.ctypes.data, 0), dtype=np.int64)
    states = np.empty((len(START), LANES), dtype=np.uint32)
    for number, message in enumerate(messages):
        lanes[number] = message.data, message.copy, BLOCK_BYTES
        states[:, number] = message.state
    _advance_all(blocks, lanes, states)
    for number, message in enumerate(messages):
        message.state[:] = states[:, number]
        message.skip(blocks)
