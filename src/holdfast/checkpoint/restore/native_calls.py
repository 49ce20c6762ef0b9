"""Functions of the C library and of zlib, called from kernels, without the GIL.

Their addresses are arguments, so that a compiled kernel can be kept for other processes. Numba can call what it is
given by address only in code that it does not keep.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.memory import HALF_WORD, WORD, instruction


class Functions(NamedTuple):
    """Addresses, in the order that kernels take them."""

    open: int
    close: int
    pread: int
    crc32: int


@cache
def functions() -> Functions | None:
    """Where they are; None where they cannot be found."""
    try:
        library = ctypes.CDLL(None)
        found = (library.open64, library.close, library.pread64, ctypes.CDLL("libz.so.1").crc32)
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in found]
    return Functions(*addresses) if all(addresses) else None  # type: ignore[arg-type]


def _call(result: Any, parameters: list[Any], *, is_variadic: bool = False) -> Any:
    """Call the function at an address, with words as arguments and result, cut and extended as it wants them."""

    def build(builder: Any, function: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, parameters, var_arg=is_variadic)
        fitting = [
            value if parameter == WORD else builder.trunc(value, parameter)
            for value, parameter in zip(arguments, parameters, strict=True)
        ]
        found = builder.call(builder.inttoptr(function, kind.as_pointer()), fitting)
        return found if result == WORD else builder.sext(found, WORD)

    return instruction(build, types.int64, 1 + len(parameters))


@intrinsic
def _open(typing: Any, function: Any, path: Any, flags: Any) -> Any:
    return _call(HALF_WORD, [WORD, HALF_WORD], is_variadic=True)


@intrinsic
def _close(typing: Any, function: Any, handle: Any) -> Any:
    return _call(HALF_WORD, [HALF_WORD])


@intrinsic
def _pread(typing: Any, function: Any, handle: Any, into: Any, length: Any, offset: Any) -> Any:
    return _call(WORD, [HALF_WORD, WORD, WORD, WORD])


@intrinsic
def _crc32(typing: Any, function: Any, before: Any, data: Any, length: Any) -> Any:
    return _call(WORD, [WORD, WORD, HALF_WORD])


# What numba calls is not what a type checker sees.
call_open, call_close = (cast(Callable[..., int], each) for each in (_open, _close))
call_pread, call_crc32 = (cast(Callable[..., int], each) for each in (_pread, _crc32))
