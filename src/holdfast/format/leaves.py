"""Values without children in a tagged tree: JSON where JSON is exact, a one-key object ``{tag: payload}`` where not."""

from __future__ import annotations

import base64
import math
import re
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from holdfast.format.document import Json
from holdfast.format.host_values import HostValue
from holdfast.format.scattered import Scattered

NOT_A_LEAF = object()

_EXACT_JSON_INT = 2**53  # beyond it other JSON readers round
_NUMPY_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[mM]8(\[\d*[a-zA-Zμ]+\])?)")
_CONTAINERS = frozenset({dict, list, tuple, set})
_TORCH_TAGS = frozenset({"size", "dtype", "device"})


def encode_leaf(value: object) -> Json:
    """The JSON of a value without children, or NOT_A_LEAF. Types are matched exactly: a subclass is someone's code."""
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        return encode(value)
    if value is None or type(value) is bool:
        return value
    if type(value) in _CONTAINERS:  # the most frequent of all that is none
        return NOT_A_LEAF
    if isinstance(value, np.generic):
        return _encode_numpy_scalar(value)
    # Nobody has a value of torch's who has not imported it.
    encode = _torch_encoders().get(type(value)) if "torch" in sys.modules else None
    return NOT_A_LEAF if encode is None else encode(value)


def decode_leaf(tag: str, payload: Json, *, host: bool = False) -> object:
    """The value of ``{tag: payload}``; raises LookupError for an unknown tag, TypeError or ValueError for the rest.

    ``host``: without torch.
    """
    if tag in _TORCH_TAGS:
        return HostValue(tag, payload) if host else _torch_decoders()[tag](payload)
    return _DECODERS[tag](payload)


def storable_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type called ``name``; ValueError for objects, records, text and what differs between machines."""
    if not _NUMPY_DTYPE.fullmatch(name):
        raise ValueError(f"NumPy type {name!r} has no portable bytes")
    return np.dtype(name)


def _encode_int(value: int) -> Json:
    return value if abs(value) <= _EXACT_JSON_INT else {"int": hex(value)}


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {"float": _float_bits(value)}


def _encode_str(value: str) -> Json:
    if value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates: two of them in a row would come back from JSON as one character
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _encode_numpy_scalar(value: np.generic) -> Json:
    name = value.dtype.str
    return {"scalar": [name, value.tobytes().hex()]} if _NUMPY_DTYPE.fullmatch(name) else NOT_A_LEAF


def _decode_numpy_scalar(payload: Json) -> object:
    name, digits = payload
    data, dtype = bytes.fromhex(digits), storable_dtype(name)
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are not a {name}")
    return np.frombuffer(data, dtype)[0]


@cache
def _torch_encoders() -> dict[type, Callable[[Any], Json]]:
    import torch

    return {
        torch.Size: lambda value: {"size": list(value)},
        torch.dtype: lambda value: {"dtype": str(value).removeprefix("torch.")},
        torch.device: lambda value: {"device": str(value)},
    }


@cache
def _torch_decoders() -> dict[str, Callable[[Any], object]]:
    import torch

    def size(payload: Json) -> torch.Size:
        if any(type(length) is not int for length in payload):
            raise TypeError("a size is made of integers")
        return torch.Size(payload)

    dtypes = {str(value).removeprefix("torch."): value for value in vars(torch).values() if type(value) is torch.dtype}
    return {"size": size, "dtype": dtypes.__getitem__, "device": lambda payload: torch.device(payload)}


def _float_bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _float_from_bits(digits: str) -> float:
    if len(digits) != 16:
        raise ValueError(f"{digits!r} is not the bits of a float")
    (value,) = struct.unpack(">d", bytes.fromhex(digits))
    return float(value)


_ENCODERS: dict[type, Callable[[Any], Json]] = {
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda value: {"bytes": base64.b64encode(value).decode("ascii")},
    complex: lambda value: {"complex": [_float_bits(value.real), _float_bits(value.imag)]},
    HostValue: lambda value: {value.tag: value.payload},
    Scattered: lambda value: {"scattered": value.to_json()},
}
_DECODERS: dict[str, Callable[[Any], object]] = {
    "int": lambda payload: int(payload, 16),
    "float": _float_from_bits,
    "str": lambda payload: bytes.fromhex(payload).decode("utf-8", "surrogatepass"),
    "bytes": lambda payload: base64.b64decode(payload, validate=True),
    "complex": lambda payload: complex(*map(_float_from_bits, payload)),
    "scalar": _decode_numpy_scalar,
    "scattered": Scattered.from_json,
}
