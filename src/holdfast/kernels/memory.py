"""What kernels do with addresses that Numba has no word for, each as what LLVM shall do.

Loads, stores and copies are plain Numba on ``carray(pointer(address), shape, dtype)``: it was measured to take no
longer than instructions written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import cgutils, types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]

LINE_BYTES = 64  # of a cache line: what one prefetch fetches
WORD, HALF_WORD = ir.IntType(64), ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_IN_ALL_CACHES, _IN_NO_CACHE_FOR_LONG = 3, 0  # LLVM's degrees of locality
_LINE = ir.VectorType(WORD, LINE_BYTES // 8)


def instruction(build: Callable[..., Any], result: Any, count: int) -> Any:
    """What an intrinsic of ``count`` integers gives to Numba; ``build`` is called with LLVM's builder and these."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return build(builder, *arguments)

    return result(*[types.int64] * count), generate


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    return instruction(lambda builder, address: builder.inttoptr(address, _BYTES), types.voidptr, 1)


@intrinsic
def _add_atomically(typing: Any, address: Any, amount: Any) -> Any:
    def build(builder: Any, address: Any, amount: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(address, WORD.as_pointer()), amount, "monotonic")

    return instruction(build, types.int64, 2)


def _prefetch(builder: Any, address: Any, locality: int) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, HALF_WORD, HALF_WORD, HALF_WORD])
    get_function: Any = cgutils.get_or_insert_function
    function = get_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, kept, data = (ir.Constant(HALF_WORD, value) for value in (0, locality, 1))
    builder.call(function, [builder.inttoptr(address, _BYTES), read, kept, data])
    return address


@intrinsic
def _prefetch_line(typing: Any, address: Any) -> Any:
    return instruction(lambda builder, address: _prefetch(builder, address, _IN_ALL_CACHES), types.int64, 1)


@intrinsic
def _prefetch_once(typing: Any, address: Any) -> Any:
    return instruction(lambda builder, address: _prefetch(builder, address, _IN_NO_CACHE_FOR_LONG), types.int64, 1)


@intrinsic
def _stream_line(typing: Any, target: Any, source: Any) -> Any:
    def build(builder: Any, target: Any, source: Any) -> Any:
        line = builder.load(builder.inttoptr(source, _LINE.as_pointer()))
        line.align = 1
        store = builder.store(line, builder.inttoptr(target, _LINE.as_pointer()))
        store.align = LINE_BYTES
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(HALF_WORD, 1)]))
        return target

    return instruction(build, types.int64, 2)


@intrinsic
def _finish_streaming(typing: Any, address: Any) -> Any:
    def build(builder: Any, address: Any) -> Any:
        builder.fence("seq_cst")
        return address

    return instruction(build, types.int64, 1)


@intrinsic
def _give_way(typing: Any) -> Any:
    def build(builder: Any) -> Any:
        get_function: Any = cgutils.get_or_insert_function
        function = get_function(builder.module, ir.FunctionType(HALF_WORD, []), "sched_yield")  # POSIX, in libc
        return builder.sext(builder.call(function, []), WORD)

    return instruction(build, types.int64, 0)


# What numba calls is not what a type checker sees.
pointer = cast(Callable[[int], Any], _pointer)  # to give to ``carray``
add_atomically = cast(Callable[[int, int], int], _add_atomically)  # to a counter of threads; what it was before
prefetch_line = cast(Callable[[int], int], _prefetch_line)  # ask for the cache line at an address, and go on
prefetch_once = cast(Callable[[int], int], _prefetch_once)  # the same for a line that is read once
stream_line = cast(Callable[[int, int], int], _stream_line)  # copy a line past the caches, to where one begins
finish_streaming = cast(Callable[[int], int], _finish_streaming)  # whoever is told of it from here on finds the lines
give_way = cast(Callable[[], int], _give_way)  # let another thread run now, if one waits for this processor
