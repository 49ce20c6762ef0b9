"""Copies byte strings and computes their SHA-256, two at a time: when one ends, the next takes its place.

Importing this compiles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.kernels.compiled import compiled
from holdfast.kernels.digests import Bytes, plain_copies
from holdfast.kernels.digests.rounds import BLOCK_BYTES, START, compress_one, compress_two

_LEAST_BYTES = 1 << 14  # below this, hashlib is as fast as the calls here
_LENGTH_BYTES = 8  # at the end of a message: how many bits it has
_A, _B, _C, _D, _E, _F, _G, _H = range(8)
_ORDER = [_F, _E, _B, _A, _H, _G, _D, _C]  # of the words of a state, as the instructions have them
_FIRST = np.array([START[word] for word in _ORDER], dtype=np.uint32)
_BACK = np.argsort(_ORDER)


@compiled(["void(int64, int64, int64, int64)"])
def _advance(blocks: int, data: int, copy: int, state: int) -> None:
    compress_one(blocks, data, copy, state)


@compiled(["void(int64, int64, int64, int64, int64, int64, int64)"])
def _advance_both(blocks: int, data: int, copy: int, state: int, data2: int, copy2: int, state2: int) -> None:
    compress_two(blocks, data, copy, state, data2, copy2, state2)


class _Message:
    """Bytes on their way to a digest: whole blocks, which are copied, and the padded end of a message."""

    def __init__(self, number: int, source: Bytes, target: Bytes) -> None:
        self.number = number
        self._state = _FIRST.copy()
        whole = len(source) // BLOCK_BYTES * BLOCK_BYTES
        np.copyto(target[whole:], source[whole:])
        end = _end(target[whole:], len(target))
        self._parts = iter([(end, end)])
        self._source, self._target = source[:whole], target[:whole]

    @property
    def blocks(self) -> int:
        """How many can be taken at once; none when the message is over."""
        if not len(self._source):
            self._source, self._target = next(self._parts, (self._source, self._target))
        return len(self._source) // BLOCK_BYTES

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Of the next block, of the place for its copy, and of the state."""
        return self._source.ctypes.data, self._target.ctypes.data, self._state.ctypes.data

    def skip(self, blocks: int) -> None:
        """So many were taken."""
        taken = blocks * BLOCK_BYTES
        self._source, self._target = self._source[taken:], self._target[taken:]

    def digest(self) -> bytes:
        """When it is over."""
        return self._state[_BACK].astype(">u4").tobytes()


def _end(rest: Bytes, length: int) -> Bytes:
    """The last bytes of a message: a bit that is set, zeros, and the message's length."""
    blocks = 1 if len(rest) + 1 + _LENGTH_BYTES <= BLOCK_BYTES else 2
    end = np.zeros(blocks * BLOCK_BYTES, dtype=np.uint8)
    end[: len(rest)] = rest
    end[len(rest)] = 0x80
    end[-_LENGTH_BYTES:] = np.frombuffer((8 * length).to_bytes(_LENGTH_BYTES, "big"), np.uint8)
    return end


def paired_copies(sources: Sequence[Bytes], targets: Sequence[Bytes]) -> list[bytes]:
    """Without the GIL, where there is much to copy."""
    pairs = list(zip(sources, targets, strict=True))
    if any(len(source) != len(target) for source, target in pairs):
        raise ValueError("a target must be as long as its source")
    found = [b"" if len(source) >= _LEAST_BYTES else plain_copies([source], [target])[0] for source, target in pairs]
    long = [number for number, digest in enumerate(found) if not digest]
    long.sort(key=lambda number: -len(sources[number]))  # so that no long one is left alone at the end
    for message in _ended(_Message(number, *pairs[number]) for number in long):
        found[message.number] = message.digest()
    return found


def _ended(waiting: Iterator[_Message]) -> Iterator[_Message]:
    """The messages as they end, two of them always on their way."""
    first, second = next(waiting, None), next(waiting, None)
    while first is not None and second is not None:
        blocks = min(first.blocks, second.blocks)
        _advance_both(blocks, *first.addresses, *second.addresses)
        first.skip(blocks)
        second.skip(blocks)
        if not first.blocks:
            yield first
            first = next(waiting, None)
        if not second.blocks:
            yield second
            second = next(waiting, None)
    for left in (each for each in (first, second) if each is not None):
        while blocks := left.blocks:
            _advance(blocks, *left.addresses)
            left.skip(blocks)
        yield left
