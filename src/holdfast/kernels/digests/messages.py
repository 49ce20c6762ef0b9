"""Byte strings on their way to a digest, and how all of a list get theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.digests import Bytes, plain_copies
from holdfast.kernels.digests.constants import BLOCK_BYTES, START

_LEAST_BYTES = 1 << 14  # below this, hashlib is as fast as the calls here
_LENGTH_BYTES = 8  # at the end of a message: how many bits it has


class Message:
    """Whole blocks, which are copied on their way, and the padded end.

    Attributes:
        number: Which one of the list it is.
        blocks: How many can be taken at once; none when the message is over.
        data: The address of the next block.
        copy: The address of the place for its copy.
        state: The state so far, from ``a`` to ``h``.
    """

    def __init__(self, number: int, source: Bytes, target: Bytes) -> None:
        self.number = number
        self.state: NDArray[np.uint32] = np.array(START, dtype=np.uint32)
        self.blocks = len(source) // BLOCK_BYTES
        self.data, self.copy = source.ctypes.data, target.ctypes.data
        whole = self.blocks * BLOCK_BYTES
        np.copyto(target[whole:], source[whole:])
        self._end = _end(target[whole:], len(target))
        self._is_ending = False

    def skip(self, blocks: int) -> None:
        """So many were taken."""
        self.blocks -= blocks
        self.data += blocks * BLOCK_BYTES
        self.copy += blocks * BLOCK_BYTES
        if not self.blocks and not self._is_ending:
            self._is_ending = True
            self.blocks = len(self._end) // BLOCK_BYTES
            self.data = self.copy = self._end.ctypes.data

    def digest(self) -> bytes:
        """When it is over."""
        return self.state.astype(">u4").tobytes()


def _end(rest: Bytes, length: int) -> Bytes:
    """The last bytes of a message: a bit that is set, zeros, and the message's length."""
    blocks = 1 if len(rest) + 1 + _LENGTH_BYTES <= BLOCK_BYTES else 2
    end = np.zeros(blocks * BLOCK_BYTES, dtype=np.uint8)
    end[: len(rest)] = rest
    end[len(rest)] = 0x80
    end[-_LENGTH_BYTES:] = np.frombuffer((8 * length).to_bytes(_LENGTH_BYTES, "big"), np.uint8)
    return end


def copies_by(
    ended: Callable[[Iterator[Message]], Iterable[Message]], sources: Sequence[Bytes], targets: Sequence[Bytes]
) -> list[bytes]:
    """What a ``HashedCopies`` returns; ``ended`` takes messages and returns each when it is over."""
    pairs = list(zip(sources, targets, strict=True))
    if any(len(source) != len(target) for source, target in pairs):
        raise ValueError("a target must be as long as its source")
    found = [b"" if len(source) >= _LEAST_BYTES else plain_copies([source], [target])[0] for source, target in pairs]
    long = [number for number, digest in enumerate(found) if not digest]
    long.sort(key=lambda number: -len(sources[number]))  # so that no long one is left alone at the end
    for message in ended(Message(number, *pairs[number]) for number in long):
        found[message.number] = message.digest()
    return found
