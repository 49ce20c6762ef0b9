"""What crosses lanes, or looks at their bits: transpositions, the least of each row, codes as bytes, headers.

Built as instructions for LLVM, like ``lanes``: as loops these would take longer than what they serve.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.quantize.lanes import INT, LANES, LANES_TYPE, VECTOR_TYPE, element, instruction, pointer

_BYTES, _WORDS = (ir.VectorType(ir.IntType(bits), LANES) for bits in (8, 32))
_WORD = types.uint32


@instruction
def least_of_each(typing: Any, array: Any, index: Any) -> Any:
    """In lane ``i`` the smallest number of lanes ``index + i``, for sixteen of them; with a NaN there, any of them."""
    return LANES_TYPE(array, INT), _across("<")


@instruction
def greatest_of_each(typing: Any, array: Any, index: Any) -> Any:
    """In lane ``i`` the largest number of lanes ``index + i``, for sixteen of them; with a NaN there, any of them."""
    return LANES_TYPE(array, INT), _across(">")


def _across(order: str) -> Any:
    """Two at a time, each half as often: a quarter of the instructions that one after another would take."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = pointer(context, builder, signature.args[0], *arguments)
        places = [builder.gep(start, [ir.Constant(ir.IntType(64), lane)]) for lane in range(LANES)]
        vectors = [builder.load(place, align=4) for place in places]
        for distance in (8, 4, 2, 1):
            upper, lower = _halves(distance)
            for row in range(distance):
                a, b = vectors[row], vectors[row + distance]
                a, b = builder.shuffle_vector(a, b, upper), builder.shuffle_vector(a, b, lower)
                vectors[row] = builder.select(builder.fcmp_ordered(order, b, a), b, a)
        return vectors[0]

    return build


@instruction
def put_bytes(typing: Any, out: Any, row: Any, byte: Any, lanes: Any) -> Any:
    """Write lanes from 0 to 255, each to the nearest integer, the even one from the middle, as bytes of a row."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, row, byte, lanes = arguments
        _store_bytes(context, builder, signature.args[0], (out, row, byte), _integers(builder, lanes))
        return context.get_dummy_value()

    return types.void(out, INT, INT, LANES_TYPE), build


@instruction
def put_halves(typing: Any, out: Any, row: Any, byte: Any, low: Any, high: Any) -> Any:
    """Write lanes from 0 to 15, rounded like that, as the lower and the upper half of bytes of a row."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high = (_integers(builder, each) for each in arguments[3:])
        both = builder.add(low, builder.shl(high, _words(4)))
        _store_bytes(context, builder, signature.args[0], arguments[:3], both)
        return context.get_dummy_value()

    return types.void(out, INT, INT, LANES_TYPE, LANES_TYPE), build


def _integers(builder: Any, lanes: Any) -> Any:
    """Words whose last bits are the nearest integers: added to 2²³, a float32 has no bit left for a fraction.

    Of lanes that are negative or not finite the words mean nothing.
    """
    return builder.bitcast(builder.fadd(lanes, ir.Constant(VECTOR_TYPE, [8388608.0] * LANES)), _WORDS)


def _store_bytes(context: Any, builder: Any, kind: Any, place: Any, words: Any) -> None:
    """The last byte of each word."""
    out, row, byte = place
    array = context.make_array(kind)(context, builder, out)
    offset = builder.add(builder.mul(row, builder.extract_value(array.shape, 1)), byte)
    target = builder.bitcast(builder.gep(array.data, [offset]), _BYTES.as_pointer())
    builder.store(builder.trunc(words, _BYTES), target, align=1)


@instruction
def transpose_square(typing: Any, target: Any, rows: Any, value: Any) -> Any:
    """Values ``value ..`` of sixteen rows become lanes ``value ..`` of the target.

    Blocks change places within registers, large ones first. As a loop it would take as long as a whole search.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, rows, value = arguments
        array = context.make_array(signature.args[1])(context, builder, rows)
        lanes = [ir.Constant(ir.IntType(64), lane) for lane in range(LANES)]
        vectors = [builder.load(element(builder, array, lane, value), align=4) for lane in lanes]
        to = pointer(context, builder, signature.args[0], target, value)
        for lane, vector in zip(lanes, _transposed(builder, vectors), strict=True):
            builder.store(vector, builder.gep(to, [lane]), align=4)
        return context.get_dummy_value()

    return types.void(target, rows, INT), build


def _transposed(builder: Any, vectors: list[Any]) -> list[Any]:
    for distance in (8, 4, 2, 1):
        upper, lower = _halves(distance)
        for row in range(LANES):
            if not row & distance:
                a, b = vectors[row], vectors[row + distance]
                vectors[row] = builder.shuffle_vector(a, b, upper)
                vectors[row + distance] = builder.shuffle_vector(a, b, lower)
    return vectors


def _halves(distance: int) -> tuple[Any, Any]:
    """What a pair of rows that far apart has in its first halves, and in its second ones."""
    upper = ir.Constant(_WORDS, [LANES + i - distance if i & distance else i for i in range(LANES)])
    lower = ir.Constant(_WORDS, [LANES + i if i & distance else i + distance for i in range(LANES)])
    return upper, lower


@instruction
def any_less(typing: Any, a: Any, b: Any) -> Any:
    """Whether a < b in some lane."""
    return types.boolean(LANES_TYPE, LANES_TYPE), _any("<")


@instruction
def any_nan(typing: Any, a: Any, b: Any) -> Any:
    """Whether a or b is NaN in some lane."""
    return types.boolean(LANES_TYPE, LANES_TYPE), _any("uno")


def _any(order: str) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        compare = builder.fcmp_unordered if order == "uno" else builder.fcmp_ordered
        found = builder.bitcast(compare(order, *arguments), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", found, ir.Constant(ir.IntType(LANES), 0))

    return build


@instruction
def zero_below(typing: Any, lanes: Any) -> Any:
    """The largest numbers with 16 bits, the leading ones of a float32, that are not above the lanes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _WORDS)
        less = builder.and_(builder.ashr(bits, _words(31)), _words(0xFFFF))
        return builder.bitcast(builder.and_(builder.add(bits, less), _words(0xFFFF_0000)), VECTOR_TYPE)

    return LANES_TYPE(LANES_TYPE), build


@instruction
def scale_above(typing: Any, lanes: Any) -> Any:
    """The smallest numbers with 17 bits that are not below the lanes, which are not negative."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.add(builder.bitcast(arguments[0], _WORDS), _words(0x7FFF))
        return builder.bitcast(builder.and_(bits, _words(0xFFFF_8000)), VECTOR_TYPE)

    return LANES_TYPE(LANES_TYPE), build


@instruction
def header_words(typing: Any, scale: Any, zero: Any) -> Any:
    """The fields of both in one word of four bytes, given as lanes: the scale's in the first two."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scale, zero = (builder.bitcast(each, _WORDS) for each in arguments)
        zero = builder.and_(zero, _words(0xFFFF_0000))
        return builder.bitcast(builder.or_(builder.lshr(scale, _words(15)), zero), VECTOR_TYPE)

    return LANES_TYPE(LANES_TYPE, LANES_TYPE), build


@instruction
def put_word(typing: Any, out: Any, row: Any, word: Any) -> Any:
    """Write a word as the first four bytes of a row."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, row, word = arguments
        array = context.make_array(signature.args[0])(context, builder, out)
        offset = builder.mul(row, builder.extract_value(array.shape, 1))
        target = builder.bitcast(builder.gep(array.data, [offset]), ir.IntType(32).as_pointer())
        builder.store(word, target, align=1)
        return context.get_dummy_value()

    return types.void(out, INT, _WORD), build


def _words(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * LANES)
