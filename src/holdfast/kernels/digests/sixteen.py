"""Copies byte strings and computes their SHA-256, sixteen at a time: when one ends, the next takes its place.

Their checksums are computed on the way. Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.checksums.folded import FIRST, ONES, TABLE
from holdfast.kernels.compiled import compiled
from holdfast.kernels.digests import Bytes, Copied
from holdfast.kernels.digests.constants import BLOCK_BYTES, START
from holdfast.kernels.digests.messages import Message, copies_by
from holdfast.kernels.digests.paired import ended_in_pairs
from holdfast.kernels.digests.sixteen_rounds import LANE_WORDS, LANES, compress_sixteen
from holdfast.kernels.memory import finish_streaming, give_way

_FEW = 8  # messages that pairs take no longer for
# Half a millisecond. Threads that wait for a disk have something to give it when they wake up; where all processors are
# busy here, Linux would let them wait for another 3 ms.
_TURN_BLOCKS = 2048


@compiled(
    [
        "void(int64, int64[:, ::1], uint32[:, ::1], uint8[:, ::1], int64[::1], int64, uint32[:, ::1], uint32[::1],"
        "uint8[::1])"
    ]
)
def _advance_all(
    blocks: int,
    lanes: NDArray[np.int64],
    states: NDArray[np.uint32],
    folds: NDArray[np.uint8],
    begun: NDArray[np.int64],
    most: int,
    found: NDArray[np.uint32],
    table: NDArray[np.uint32],
    first: NDArray[np.uint8],
) -> None:
    """``begun`` tells, of each message, how many blocks of a checksum are in its fold; a checksum is of ``most``."""
    counts = np.zeros(begun.shape[0], dtype=np.int64)
    while blocks:
        turn = min(_TURN_BLOCKS, blocks)
        for number in range(begun.shape[0]):
            turn = min(turn, most - begun[number])
        compress_sixteen(turn, lanes.ctypes.data, states.ctypes.data, folds.ctypes.data)
        for number in range(begun.shape[0]):
            begun[number] += turn
            if begun[number] == most:
                state = np.uint32(0)
                for position in range(BLOCK_BYTES):
                    state = table[(state ^ folds[number, position]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
                found[number, counts[number]] = state ^ np.uint32(ONES)
                folds[number] = first
                begun[number] = 0
                counts[number] += 1
        blocks -= turn
        give_way()
    finish_streaming(0)


def sixteen_copies(sources: Sequence[Bytes], targets: Sequence[Bytes], block_bytes: int) -> list[Copied]:
    """Without the GIL, where there is much to copy."""
    if block_bytes % BLOCK_BYTES:
        raise ValueError(f"checksums of {block_bytes} bytes are not possible; pass a multiple of {BLOCK_BYTES}")
    return copies_by(partial(_ended, block_bytes // BLOCK_BYTES), sources, targets, block_bytes)


def _ended(most: int, waiting: Iterator[Message]) -> Iterator[Message]:
    """The messages as they end, sixteen of them on their way as long as there are so many."""
    working = list(islice(waiting, LANES))
    while len(working) > _FEW:
        _take(min(message.blocks for message in working), working, most)
        yield from (message for message in working if not message.blocks)
        working = [message for message in working if message.blocks]
        working += islice(waiting, LANES - len(working))
    yield from ended_in_pairs(chain(working, waiting))


def _take(blocks: int, messages: Sequence[Message], most: int) -> None:
    """Of each message so many blocks; lanes without one stay where they are, in a block of their own."""
    spare = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    lanes = np.full((LANES, LANE_WORDS), (spare.ctypes.data, spare.ctypes.data, 0), dtype=np.int64)
    states = np.empty((len(START), LANES), dtype=np.uint32)
    folds = np.zeros((LANES, BLOCK_BYTES), dtype=np.uint8)
    begun = np.array([message.summed % most for message in messages])
    found = np.empty((len(messages), blocks // most + 1), dtype=np.uint32)
    for number, message in enumerate(messages):
        lanes[number] = message.data, message.copy, BLOCK_BYTES
        states[:, number] = message.state
        folds[number] = message.fold
    counts = (begun + blocks) // most
    _advance_all(blocks, lanes, states, folds, begun, most, found, TABLE, FIRST)
    for number, message in enumerate(messages):
        message.state[:] = states[:, number]
        message.add_checksums(blocks, found[number, : counts[number]].tolist(), folds[number])
        message.skip(blocks)
