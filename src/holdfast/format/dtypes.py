"""Element types: torch's dtypes, NumPy's, and the codes that safetensors gives them.

Torch is imported only where one of its dtypes is made, so that bytes can be read without it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import UnsupportedState

if TYPE_CHECKING:
    import torch

_TYPES = (  # torch's name, safetensors' code, bytes
    ("bool", "BOOL", 1),
    ("uint8", "U8", 1),
    ("uint16", "U16", 2),
    ("uint32", "U32", 4),
    ("uint64", "U64", 8),
    ("int8", "I8", 1),
    ("int16", "I16", 2),
    ("int32", "I32", 4),
    ("int64", "I64", 8),
    ("float8_e4m3fn", "F8_E4M3", 1),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
    ("float8_e5m2", "F8_E5M2", 1),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
    ("float16", "F16", 2),
    ("bfloat16", "BF16", 2),
    ("float32", "F32", 4),
    ("float64", "F64", 8),
    ("complex64", "C64", 8),
)
DTYPE_CODES = {name: code for name, code, _ in _TYPES}
TORCH_NAMES = {code: name for name, code, _ in _TYPES}
_SIZES_BYTES = {code: size_bytes for _, code, size_bytes in _TYPES}


def itemsize(code: str) -> int:
    """Bytes per element."""
    size_bytes = _SIZES_BYTES.get(code)
    if size_bytes is None:
        raise _unknown(code)
    return size_bytes


@cache
def code_of(dtype: torch.dtype) -> str:
    """The safetensors code of a torch dtype."""
    code = DTYPE_CODES.get(str(dtype).removeprefix("torch."))
    if code is None:
        raise UnsupportedState(
            f"tensors of type {dtype} cannot be stored: safetensors has no code for it; "
            f"convert them to one of {', '.join(DTYPE_CODES)}"
        )
    return code


def torch_dtype(code: str) -> torch.dtype:
    """The torch dtype of a safetensors code."""
    import torch

    name = TORCH_NAMES.get(code)
    if name is None:
        raise _unknown(code)
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@cache
def array_dtype(code: str) -> np.dtype[Any]:
    """The NumPy type of arrays with such elements; for those that NumPy lacks, an unsigned integer of their size."""
    if itemsize(code) and not hasattr(np, TORCH_NAMES[code]):
        return np.dtype(f"u{itemsize(code)}")
    return np.dtype(TORCH_NAMES[code])


@cache
def array_code(dtype: np.dtype[Any]) -> str:
    """The safetensors code of a NumPy type."""
    code = DTYPE_CODES.get(dtype.name) if dtype.isnative else None
    if code is None:
        raise UnsupportedState(
            f"arrays of type {dtype} cannot be stored as tensors; convert them to one of {', '.join(DTYPE_CODES)}"
        )
    return code


def _unknown(code: str) -> UnsupportedState:
    return UnsupportedState(f"unknown element type {code!r}; known are {', '.join(TORCH_NAMES)}")
