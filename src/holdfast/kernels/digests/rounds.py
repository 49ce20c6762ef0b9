"""The compression function of SHA-256 (FIPS 180-4) by the processor's own instructions, on several messages in step.

Each block is stored at another place on its way, so that what is hashed is what was copied.

A state is two vectors of four words, in the order that the instructions want: (f, e, b, a) and (h, g, d, c). Importing
this needs Numba and a processor with these instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.digests.constants import ADDED, BLOCK_BYTES, ROUNDS
from holdfast.kernels.memory import HALF_WORD, WORD, instruction

_VECTOR_BYTES = 16
_FOURS = ROUNDS // 4  # rounds come in fours: as many words are in a vector
_WORDS = ir.VectorType(HALF_WORD, 4)
_BYTES = ir.VectorType(ir.IntType(8), _VECTOR_BYTES)


class _Lane:
    """One message: where it lies, where a copy of it goes, and the state so far."""

    def __init__(self, builder: Any, data: Any, copy: Any, state: Any) -> None:
        self._builder = builder
        self._data = data
        self._copy = copy
        self._state = state
        alloca: Any = cgutils.alloca_once
        self._kept = [alloca(builder, _WORDS) for _ in range(2)]
        for number, kept in enumerate(self._kept):
            builder.store(builder.load(self._place(state, number * _VECTOR_BYTES, _WORDS), align=1), kept)
        self._now: list[Any] = []
        self._words: list[Any] = []

    def begin(self, at: Any) -> None:
        """A block, so many bytes from the message's beginning."""
        self._now = [self._builder.load(kept) for kept in self._kept]
        source, target = self._builder.add(self._data, at), self._builder.add(self._copy, at)
        self._words = [self._taken(source, target, number * _VECTOR_BYTES) for number in range(4)]

    def four_rounds(self, number: int) -> None:
        """The ``number``-th four of a block."""
        builder = self._builder
        if number >= 4:
            self._words.append(self._scheduled(self._words[-4:]))
        added = ir.Constant(_WORDS, ADDED[4 * number : 4 * number + 4])
        words = builder.add(self._words[number], added)
        later = builder.shuffle_vector(words, words, _picked([2, 3, 0, 1]))
        low, high = self._now
        high = self._call("sha256rnds2", high, low, words)
        low = self._call("sha256rnds2", low, high, later)
        self._now = [low, high]

    def end(self) -> None:
        """The block is over."""
        for kept, now in zip(self._kept, self._now, strict=True):
            self._builder.store(self._builder.add(self._builder.load(kept), now), kept)

    def store(self) -> None:
        """Put the state back."""
        for number, kept in enumerate(self._kept):
            place = self._place(self._state, number * _VECTOR_BYTES, _WORDS)
            self._builder.store(self._builder.load(kept), place, align=1)

    def _scheduled(self, words: list[Any]) -> Any:
        """The next four words of the message schedule, from the sixteen before."""
        between = self._builder.shuffle_vector(words[2], words[3], _picked([1, 2, 3, 4]))
        begun = self._builder.add(self._call("sha256msg1", words[0], words[1]), between)
        return self._call("sha256msg2", begun, words[3])

    def _taken(self, source: Any, target: Any, offset: int) -> Any:
        """Four words, copied and then turned around: a message is big-endian."""
        data = self._builder.load(self._place(source, offset, _BYTES), align=1)
        self._builder.store(data, self._place(target, offset, _BYTES), align=1)
        order = [word + byte for word in range(0, _VECTOR_BYTES, 4) for byte in (3, 2, 1, 0)]
        return self._builder.bitcast(self._builder.shuffle_vector(data, data, _picked(order)), _WORDS)

    def _place(self, address: Any, offset: int, kind: Any) -> Any:
        return self._builder.inttoptr(self._builder.add(address, ir.Constant(WORD, offset)), kind.as_pointer())

    def _call(self, name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(_WORDS, [_WORDS] * len(arguments))
        get_function: Any = cgutils.get_or_insert_function
        return self._builder.call(get_function(self._builder.module, kind, f"llvm.x86.{name}"), arguments)


def _picked(elements: list[int]) -> Any:
    return ir.Constant(ir.VectorType(HALF_WORD, len(elements)), elements)


def _compressed(builder: Any, blocks: Any, lanes: list[_Lane]) -> Any:
    for_range: Any = cgutils.for_range
    with for_range(builder, blocks) as loop:
        at = builder.mul(loop.index, ir.Constant(WORD, BLOCK_BYTES))
        for lane in lanes:
            lane.begin(at)
        for number in range(_FOURS):
            for lane in lanes:
                lane.four_rounds(number)
        for lane in lanes:
            lane.end()
    for lane in lanes:
        lane.store()
    return blocks


@intrinsic
def _one(typing: Any, blocks: Any, data: Any, copy: Any, state: Any) -> Any:
    def build(builder: Any, blocks: Any, *message: Any) -> Any:
        return _compressed(builder, blocks, [_Lane(builder, *message)])

    return instruction(build, types.int64, 4)


@intrinsic
def _two(typing: Any, blocks: Any, data: Any, copy: Any, state: Any, data2: Any, copy2: Any, state2: Any) -> Any:
    def build(builder: Any, blocks: Any, *messages: Any) -> Any:
        return _compressed(builder, blocks, [_Lane(builder, *messages[:3]), _Lane(builder, *messages[3:])])

    return instruction(build, types.int64, 7)


# How many blocks; then, of each message, the addresses of its next block, of the place for a copy, and of its state.
compress_one = cast(Callable[[int, int, int, int], int], _one)
compress_two = cast(Callable[[int, int, int, int, int, int, int], int], _two)
