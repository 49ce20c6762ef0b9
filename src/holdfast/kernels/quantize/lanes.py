"""Sixteen float32 numbers as one value in Numba kernels: a row in each lane.

What a kernel computes for a row, it computes for sixteen with the same instructions, and no sum runs across lanes.
Lanes add, subtract, multiply and divide like numbers; ``load`` and ``store`` move them. LLVM makes of them the widest
registers that the processor has. Left to itself it keeps such sums in memory, or does not see the vector at all:
``python -m benchmarks llvm`` measures what plain Numba makes of the same rows, a fifth of the speed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.core.typing.templates import (  # type: ignore[import-untyped, unused-ignore]
    ConcreteTemplate,
    infer_global,
)
from numba.extending import (  # type: ignore[import-untyped, unused-ignore]
    intrinsic,
    lower_builtin,
    models,
    register_model,
)
from numpy.typing import NDArray

from holdfast.kernels.compiled import Kernel
from holdfast.kernels.compiled import compiled as compiled_for

Floats = NDArray[np.float32]
Lanes = Any  # no value outside of kernels

LANES = 16

INT, FLOAT = types.int64, types.float32
VECTOR, MATRIX = (types.Array(types.float32, dimensions, "C") for dimensions in (1, 2))
ROWS = types.Array(types.float32, 2, "C", readonly=True)  # or writable

VECTOR_TYPE = ir.VectorType(ir.FloatType(), LANES)
_NONE = ir.Constant(VECTOR_TYPE, ir.Undefined)


def compiled(*arguments: Any, returns: Any = types.void) -> Callable[[Kernel], Kernel]:
    """Compile now and for these types only; a division by zero is infinite, as NumPy has it."""
    return compiled_for([returns(*arguments)], error_model="numpy")


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of kernels that is given as what LLVM shall do."""
    return cast(Callable[..., Any], intrinsic(function))


class LanesType(types.Type):  # type: ignore[misc, unused-ignore]
    """The type of lanes in kernels."""

    def __init__(self) -> None:
        super().__init__(name="lanes")  # type: ignore[no-untyped-call, unused-ignore]


LANES_TYPE = LanesType()


@register_model(LanesType)  # type: ignore[no-untyped-call, unused-ignore]
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR_TYPE)  # type: ignore[no-untyped-call, unused-ignore]


def _operation(symbol: Any, instruction: str) -> None:
    @infer_global(symbol)  # type: ignore[no-untyped-call, unused-ignore]
    class Typing(ConcreteTemplate):  # type: ignore[misc, unused-ignore]
        cases = (LANES_TYPE(LANES_TYPE, LANES_TYPE),)

    @lower_builtin(symbol, LanesType, LanesType)  # type: ignore[no-untyped-call, unused-ignore]
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


for _symbol, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _operation(getattr(operator, _symbol), _instruction)
    if _symbol != "truediv":
        _operation(getattr(operator, f"i{_symbol}"), _instruction)


def pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(
        builder.gep(data, [builder.mul(index, ir.Constant(index.type, LANES))]), VECTOR_TYPE.as_pointer()
    )


@instruction
def load(typing: Any, array: Any, index: Any) -> Any:
    """Lanes number ``index`` of a contiguous array."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(pointer(context, builder, signature.args[0], *arguments), align=4)

    return LANES_TYPE(array, INT), build


@instruction
def load_row(typing: Any, rows: Any, row: Any, value: Any) -> Any:
    """Sixteen values of one row, from ``value`` on."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load(element(builder, array, arguments[1], arguments[2]), align=4)

    return LANES_TYPE(rows, INT, INT), build


def element(builder: Any, array: Any, row: Any, value: Any) -> Any:
    offset = builder.add(builder.mul(row, builder.extract_value(array.shape, 1)), value)
    return builder.bitcast(builder.gep(array.data, [offset]), VECTOR_TYPE.as_pointer())


@instruction
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write them there."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], pointer(context, builder, signature.args[0], *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, INT, LANES_TYPE), build


@instruction
def same(typing: Any, number: Any) -> Any:
    """The same number in all lanes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(_NONE, arguments[0], ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, _NONE, mask)

    return LANES_TYPE(FLOAT), build


@instruction
def nearest(typing: Any, lanes: Any) -> Any:
    """The nearest integers, even ones from the middle."""
    return LANES_TYPE(LANES_TYPE), _call("llvm.rint")


@instruction
def product_plus(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, fused where the processor can: only for products that are exact, whose fusion changes no bit."""
    return LANES_TYPE(LANES_TYPE, LANES_TYPE, LANES_TYPE), _call("llvm.fmuladd")


def _call(name: str) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(VECTOR_TYPE, [VECTOR_TYPE] * len(arguments))
        get_function: Any = cgutils.get_or_insert_function
        return builder.call(get_function(builder.module, kind, f"{name}.v{LANES}f32"), arguments)

    return build


@instruction
def where_less(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """``yes`` in the lanes where a < b, ``no`` in the others and where one of them is NaN."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

    return LANES_TYPE(LANES_TYPE, LANES_TYPE, LANES_TYPE, LANES_TYPE), build
