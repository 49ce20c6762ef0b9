"""Reads a state tree by docs/spec/tree.md alone: the standard library and NumPy, nothing of Holdfast."""

from __future__ import annotations

import base64
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

_FACTORIES: dict[str | None, Callable[[], Any] | None] = {
    None: None, "dict": dict, "float": float, "int": int, "list": list, "set": set, "str": str
}  # fmt: skip


def plain_value(skeleton: dict[str, Any], tensors: list[Any]) -> Any:
    """The value of a skeleton; tensors as arrays, and a torch size, dtype or device as ``(tag, payload)``."""

    def value(node: Any) -> Any:
        if isinstance(node, list):
            return [value(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((tag, payload),) = node.items()
        return tags[tag](payload)

    def array(payload: Any) -> Any:
        kind, shape, index = payload
        return np.frombuffer(tensors[index].tobytes(), kind).reshape(shape)

    def pairs(payload: Any) -> list[tuple[Any, Any]]:
        return [(value(key), value(item)) for key, item in payload]

    tags: dict[str, Callable[[Any], Any]] = {
        "int": lambda payload: int(payload, 16),
        "float": _float,
        "str": lambda payload: bytes.fromhex(payload).decode("utf-8", "surrogatepass"),
        "bytes": base64.b64decode,
        "complex": lambda payload: complex(*map(_float, payload)),
        "tuple": lambda payload: tuple(map(value, payload)),
        "set": lambda payload: set(map(value, payload)),
        "frozenset": lambda payload: frozenset(map(value, payload)),
        "dict": lambda payload: dict(pairs(payload)),
        "ordereddict": lambda payload: OrderedDict(pairs(payload)),
        "counter": lambda payload: Counter(dict(pairs(payload))),
        "defaultdict": lambda payload: defaultdict(_FACTORIES[payload[0]], pairs(payload[1])),
        "tensor": tensors.__getitem__,
        "array": array,
        "scalar": lambda payload: np.frombuffer(bytes.fromhex(payload[1]), payload[0])[0],
        "size": lambda payload: ("size", payload),
        "dtype": lambda payload: ("dtype", payload),
        "device": lambda payload: ("device", payload),
    }
    return value(skeleton["root"])


def _float(bits: str) -> float:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    return float(number)
