"""The compression function of SHA-256 (FIPS 180-4) on sixteen messages in step, one in each lane of AVX-512's vectors.

Each block is stored at another place on its way, so that what is hashed is what was copied, and folded into a block
that stands for all before in their CRC-32. The more passes over memory there are, the slower is a disk beside them: so
there is one, and copies go past the caches where they begin with a cache line.

Each vector holds one word of all messages. Importing this needs Numba and a processor with AVX-512 and VPCLMULQDQ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.checksums.folded import folded
from holdfast.kernels.digests.constants import ADDED, BLOCK_BYTES, ROUNDS
from holdfast.kernels.memory import HALF_WORD, LINE_BYTES, WORD, instruction

LANES = 16
LANE_WORDS = 3  # that tell of a message: the address of its next block, that of its copy, and the bytes to the next one
_STATE_WORDS = 8
_BLOCK_WORDS = 16
_WORD_BYTES = 8
_VECTOR_BYTES = 4 * LANES
_VECTOR = ir.VectorType(HALF_WORD, LANES)
_BYTES = ir.VectorType(ir.IntType(8), BLOCK_BYTES)
_FOLD = ir.VectorType(WORD, BLOCK_BYTES // _WORD_BYTES)


class _Vectors:
    """What SHA-256 does with words, done with vectors of them."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def sum(self, first: Any, *others: Any) -> Any:
        for other in others:
            first = self._builder.add(first, other)
        return first

    def mixed(self, word: Any, *turns: int, shifted: int = 0) -> Any:
        """The word turned right by each number of bits, and shifted right, added without carries."""
        parts = [self._turned(word, bits) for bits in turns]
        if shifted:
            parts.append(self._builder.lshr(word, _all(shifted)))
        return self._builder.xor(self._builder.xor(parts[0], parts[1]), parts[2])

    def choice(self, which: Any, first: Any, second: Any) -> Any:
        """Bits of the first where those of ``which`` are set, else of the second."""
        builder = self._builder
        return builder.xor(builder.and_(which, builder.xor(first, second)), second)

    def majority(self, first: Any, second: Any, third: Any) -> Any:
        builder = self._builder
        return builder.or_(builder.and_(first, second), builder.and_(third, builder.or_(first, second)))

    def _turned(self, word: Any, bits: int) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        get_function: Any = cgutils.get_or_insert_function
        turn = get_function(self._builder.module, kind, f"llvm.fshr.v{LANES}i32")
        return self._builder.call(turn, [word, word, _all(bits)])


def _all(value: int) -> Any:
    return ir.Constant(_VECTOR, [value] * LANES)


def _picked(elements: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(HALF_WORD, len(elements)), list(elements))


def _place(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, ir.Constant(WORD, offset)), kind.as_pointer())


def _taken(builder: Any, lane: Any, fold: Any) -> Any:
    """A block of one message, copied and folded, and then turned around, word by word: a message is big-endian."""
    places = [_place(builder, lane, number * _WORD_BYTES, WORD) for number in range(LANE_WORDS)]
    source, target, step = (builder.load(place) for place in places)
    data = builder.load(_place(builder, source, 0, _BYTES), align=1)
    _copy(builder, data, source, target)
    place = _place(builder, fold, 0, _FOLD)
    before = builder.load(place, align=1)
    builder.store(folded(builder, before, builder.bitcast(data, _FOLD), BLOCK_BYTES), place, align=1)
    builder.store(builder.add(source, step), places[0])
    builder.store(builder.add(target, step), places[1])
    order = [word + byte for word in range(0, BLOCK_BYTES, 4) for byte in (3, 2, 1, 0)]
    return builder.bitcast(builder.shuffle_vector(data, data, _picked(order)), _VECTOR)


def _copy(builder: Any, data: Any, source: Any, target: Any) -> None:
    """To where it is not yet; past the caches if that is a cache line."""
    place = _place(builder, target, 0, _BYTES)
    is_elsewhere = builder.icmp_unsigned("!=", source, target)
    behind = builder.and_(target, ir.Constant(WORD, LINE_BYTES - 1))
    is_line = builder.icmp_unsigned("==", behind, ir.Constant(WORD, 0))
    with builder.if_then(is_elsewhere), builder.if_else(is_line) as (line, other):
        with line:
            store = builder.store(data, place, align=LINE_BYTES)
            store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(HALF_WORD, 1)]))
        with other:
            builder.store(data, place, align=1)


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square: pairs of rows exchange single elements, then twos, fours and eights."""
    for width in (1, 2, 4, 8):
        first = _picked([column + (LANES - width if column & width else 0) for column in range(LANES)])
        second = _picked([column + (LANES if column & width else width) for column in range(LANES)])
        pairs = {row: (rows[row & ~width], rows[row | width]) for row in range(LANES)}
        rows = [builder.shuffle_vector(*pair, second if row & width else first) for row, pair in pairs.items()]
    return rows


def _scheduled(vectors: _Vectors, words: list[Any]) -> Any:
    """The next word of the message schedule."""
    return vectors.sum(
        words[-16],
        words[-7],
        vectors.mixed(words[-15], 7, 18, shifted=3),
        vectors.mixed(words[-2], 17, 19, shifted=10),
    )


def _rounds(builder: Any, state: list[Any], words: list[Any]) -> list[Any]:
    """The state after a block, before that of the block before is added."""
    vectors = _Vectors(builder)
    a, b, c, d, e, f, g, h = state
    for number in range(ROUNDS):
        if number >= _BLOCK_WORDS:
            words.append(_scheduled(vectors, words))
        one = vectors.sum(h, _all(ADDED[number]), words[number], vectors.choice(e, f, g), vectors.mixed(e, 6, 11, 25))
        two = vectors.sum(vectors.mixed(a, 2, 13, 22), vectors.majority(a, b, c))
        a, b, c, d, e, f, g, h = vectors.sum(one, two), a, b, c, vectors.sum(d, one), e, f, g
    return [a, b, c, d, e, f, g, h]


def _compressed(builder: Any, blocks: Any, lanes: Any, states: Any, folds: Any) -> Any:
    alloca: Any = cgutils.alloca_once
    for_range: Any = cgutils.for_range
    places = [_place(builder, states, number * _VECTOR_BYTES, _VECTOR) for number in range(_STATE_WORDS)]
    kept = [alloca(builder, _VECTOR) for _ in places]
    for place, word in zip(places, kept, strict=True):
        builder.store(builder.load(place, align=1), word)
    with for_range(builder, blocks):
        rows = [
            _taken(
                builder,
                builder.add(lanes, ir.Constant(WORD, lane * LANE_WORDS * _WORD_BYTES)),
                builder.add(folds, ir.Constant(WORD, lane * BLOCK_BYTES)),
            )
            for lane in range(LANES)
        ]
        state = _rounds(builder, [builder.load(word) for word in kept], _transposed(builder, rows))
        for word, added in zip(kept, state, strict=True):
            builder.store(builder.add(builder.load(word), added), word)
    for place, word in zip(places, kept, strict=True):
        builder.store(builder.load(word), place, align=1)
    return blocks


@intrinsic
def _sixteen(typing: Any, blocks: Any, lanes: Any, states: Any, folds: Any) -> Any:
    return instruction(_compressed, types.int64, 4)


# How many blocks of each; then the addresses of three words (int64) for each message, which move on to the block after
# these, of the states, word by word: a of all messages, then b, and of the blocks that stand for all before.
compress_sixteen = cast(Callable[[int, int, int, int], int], _sixteen)
