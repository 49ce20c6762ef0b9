"""Byte strings on their way to a digest, and how all of a list get theirs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.checksums.folded import FIRST, ONES, folded_checksums
from holdfast.kernels.digests import Bytes, Copied, plain_copies
from holdfast.kernels.digests.constants import BLOCK_BYTES, START

_LEAST_BYTES = 1 << 14  # below this, hashlib is as fast as the calls here
_LENGTH_BYTES = 8  # at the end of a message: how many bits it has


class Message:
    """Whole blocks of 64 bytes, which are copied on their way, and the padded end.

    Attributes:
        number: Which one of the list it is.
        blocks: How many can be taken at once; none when the message is over.
        data: The address of the next block.
        copy: The address of the place for its copy.
        state: The state so far, from ``a`` to ``h``.
        summed: How many blocks ``add_checksums`` has told of.
        fold: A block that stands for those of them that are in no whole checksum.
    """

    def __init__(self, number: int, source: Bytes, target: Bytes) -> None:
        self.number = number
        self.state: NDArray[np.uint32] = np.array(START, dtype=np.uint32)
        self.blocks = len(source) // BLOCK_BYTES
        self.data, self.copy = source.ctypes.data, target.ctypes.data
        self.summed = 0
        self.fold: Bytes = FIRST
        self._target = target
        self._whole = self.blocks
        self._rest = target[self.blocks * BLOCK_BYTES :]
        np.copyto(self._rest, source[self.blocks * BLOCK_BYTES :])
        self._end = _end(self._rest, len(target))
        self._is_ending = False
        self._checksums: list[int] = []

    def skip(self, blocks: int) -> None:
        """So many were taken."""
        self.blocks -= blocks
        self.data += blocks * BLOCK_BYTES
        self.copy += blocks * BLOCK_BYTES
        if not self.blocks and not self._is_ending:
            self._is_ending = True
            self.blocks = len(self._end) // BLOCK_BYTES
            self.data = self.copy = self._end.ctypes.data

    def add_checksums(self, blocks: int, found: Sequence[int], fold: Bytes) -> None:
        """Of so many blocks, before they are skipped: checksums that are whole by now, and what is left after these."""
        if not self._is_ending:
            self.summed += blocks
            self.fold = fold
            self._checksums += found

    def copied(self, block_bytes: int) -> Copied:
        """When it is over."""
        return Copied(digest=self.state.astype(">u4").tobytes(), checksums=self._all_checksums(block_bytes))

    def _all_checksums(self, block_bytes: int) -> list[int]:
        if self.summed < self._whole:
            return folded_checksums(self._target.data, block_bytes)
        if len(self._target) % block_bytes == 0:
            return self._checksums
        return [*self._checksums, zlib.crc32(self._rest.data, zlib.crc32(self.fold.data, ONES))]


def _end(rest: Bytes, length: int) -> Bytes:
    """The last bytes of a message: a bit that is set, zeros, and the message's length."""
    blocks = 1 if len(rest) + 1 + _LENGTH_BYTES <= BLOCK_BYTES else 2
    end = np.zeros(blocks * BLOCK_BYTES, dtype=np.uint8)
    end[: len(rest)] = rest
    end[len(rest)] = 0x80
    end[-_LENGTH_BYTES:] = np.frombuffer((8 * length).to_bytes(_LENGTH_BYTES, "big"), np.uint8)
    return end


def copies_by(
    ended: Callable[[Iterator[Message]], Iterable[Message]],
    sources: Sequence[Bytes],
    targets: Sequence[Bytes],
    block_bytes: int,
) -> list[Copied]:
    """What a ``HashedCopies`` returns; ``ended`` takes messages and returns each when it is over."""
    pairs = list(zip(sources, targets, strict=True))
    if any(len(source) != len(target) for source, target in pairs):
        raise ValueError("a target must be as long as its source")
    short = [number for number, (source, _) in enumerate(pairs) if len(source) < _LEAST_BYTES]
    plain = plain_copies([sources[number] for number in short], [targets[number] for number in short], block_bytes)
    found = dict(zip(short, plain, strict=True))
    long = [number for number in range(len(pairs)) if number not in found]
    long.sort(key=lambda number: -len(sources[number]))  # so that no long one is left alone at the end
    for message in ended(Message(number, *pairs[number]) for number in long):
        found[message.number] = message.copied(block_bytes)
    return [found[number] for number in range(len(pairs))]
