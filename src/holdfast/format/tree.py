"""A lossless tagged tree for everything that is not a table: values in, canonical JSON and a list of tensors out.

A value that cannot be restored without running code is refused, with its path (docs/spec/tree.md). Nothing in a
skeleton is ever executed: its tags name the few types below and nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeGuard

import numpy as np

from holdfast.errors import DamagedData, UnsupportedState
from holdfast.format.document import Json, canonical_json
from holdfast.format.dtypes import DTYPE_CODES, code_of, torch_dtype
from holdfast.format.host_values import HostTensor, is_torch_tensor
from holdfast.format.leaves import NOT_A_LEAF, decode_leaf, encode_leaf, storable_dtype

if TYPE_CHECKING:
    from torch import Tensor

AnyTensor: TypeAlias = Any  # a Tensor or, without torch, a HostTensor

VERSION = 1
MAX_DEPTH = 100
_SMALL = 2**53  # integers below it are exact in JSON
_FACTORIES: dict[str, Callable[[], object]] = {kind.__name__: kind for kind in (dict, float, int, list, set, str)}
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTree:
    """A value taken apart: ``skeleton`` refers to ``tensors`` by index. The tensors are the live ones, not copies."""

    skeleton: bytes
    tensors: list[AnyTensor]


def encode_tree(value: object, *, root: str = "state", host: bool = False, tiles: int = 0) -> EncodedTree:
    """Take ``value`` apart; raises UnsupportedState with the path, from ``root``, of what cannot be stored.

    ``host``: without torch, all tensors as HostTensor. ``tiles``: so many tensors will be stored behind those of the
    tree, which are boxes of scattered ones.
    """
    return _encoded(_Encoder(root, host=host), value, tiles=tiles)


def _encoded(encoder: _Encoder, value: object, *, tiles: int) -> EncodedTree:
    document = {"tree": VERSION, "root": encoder.encode(value), "tensors": len(encoder.tensors)}
    skeleton = canonical_json({**document, "tiles": tiles} if tiles else document)
    return EncodedTree(skeleton=skeleton, tensors=encoder.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value that a ``TreeBuilder`` has taken apart: it stands for that value in the rest of its tree."""

    json: Json


class TreeBuilder:
    """Takes a tree apart piece by piece: nothing that is changed after ``node`` has seen it shows in the tree.

    Tensors have numbers in the order in which they are found.
    """

    def __init__(self, *, root: str = "state", tensors: Iterable[AnyTensor] = ()) -> None:
        """``tensors`` are those of nodes that another one made first of all."""
        self._encoder = _Encoder(root)
        self._encoder.tensors.extend(tensors)

    @property
    def tensors(self) -> list[AnyTensor]:
        """All that were found, live ones."""
        return self._encoder.tensors

    def node(self, value: object, *keys: object) -> Node:
        """A value that ``keys`` lead to from the root; raises UnsupportedState with the path of what cannot be kept."""
        return Node(self._encoder.encode_at(value, keys))

    def finish(self, value: object, *, tiles: int = 0) -> EncodedTree:
        """The whole tree, in which nodes stand for what was taken apart before. ``tiles``: see ``encode_tree``."""
        return _encoded(self._encoder, value, tiles=tiles)


def check_tree(value: object, *, root: str = "state") -> None:
    """Raise UnsupportedState if ``encode_tree`` would."""
    _Encoder(root).encode(value)


def decode_tree(
    skeleton: bytes | bytearray | memoryview,
    tensors: Sequence[AnyTensor],
    *,
    name: str = "state",
    host: bool = False,
) -> Any:
    """The value that was encoded, with ``tensors`` in it as they are; raises DamagedData on anything malformed.

    ``host``: other values of torch's come in the form without torch.
    """
    try:
        document = json.loads(bytes(skeleton), parse_constant=_refuse_constant)
        if document["tree"] != VERSION:
            raise ValueError(f"tree version {document['tree']!r} is not known to this release")
        own, behind = document["tensors"], _tiles(document)
        if own + behind != len(tensors):
            raise ValueError(f"it refers to {own + behind!r} tensors, {len(tensors)} were read")
        return _Decoder(tensors[:own], host=host).decode(document["root"])
    except _MALFORMED as error:
        raise DamagedData(name, f"holds no valid state tree: {error!r}") from error


def tiles_in(skeleton: bytes | bytearray | memoryview, *, name: str = "state") -> int:
    """How many of a part's last state tensors are tiles, which the tree itself does not refer to."""
    try:
        return _tiles(json.loads(bytes(skeleton), parse_constant=_refuse_constant))
    except _MALFORMED as error:
        raise DamagedData(name, f"holds no valid state tree: {error!r}") from error


def _tiles(document: Any) -> int:
    found = document.get("tiles", 0)
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r} is no number of tiles")
    return found


class _Encoder:
    """Training waits for it: what nearly all keys and values are is looked for first, and without calls.

    Nor are paths put together before something is refused: ``_keys`` lead from the root to the value at hand.
    """

    def __init__(self, root: str, *, host: bool = False) -> None:
        self._root = root
        self._host = host
        self.tensors: list[AnyTensor] = []
        self._open: list[object] = []  # containers on the way from the root
        self._keys: list[object] = []
        self._above = 0  # keys that lead to the first container
        self._plain = _plain_tensors()

    def encode(self, value: object) -> Json:
        leaf = encode_leaf(value)
        return self._encode(value) if leaf is NOT_A_LEAF else leaf

    def encode_at(self, value: object, keys: Sequence[object]) -> Json:
        """A value that these keys lead to."""
        self._keys, self._above = [*keys], len(keys)
        found = self.encode(value)
        self._keys, self._above = [], 0
        return found

    @property
    def _path(self) -> str:
        return self._path_of(self._keys)

    def _path_of(self, keys: Sequence[object]) -> str:
        return self._root + "".join(f"[{key!r}]" for key in keys)

    def _encode(self, value: object) -> Json:
        """What has children, or is a tensor."""
        encode = self._containers.get(type(value))
        if encode is None:
            return self._encode_tensor(value)
        if len(self._open) >= MAX_DEPTH:
            self._refuse_depth()
        self._open.append(value)
        found = {"dict": self._pairs(value)} if type(value) is dict else encode(self, value)
        self._open.pop()
        return found

    def _encode_tensor(self, value: object) -> Json:
        if type(value) is HostTensor:
            return {"tensor": self._add_host(value)}
        if is_torch_tensor(value):
            return {"tensor": self._add(_detached(_storable_tensor(value, self._path)))}
        if type(value) is np.ndarray:
            return {"array": [value.dtype.str, list(value.shape), self._add_host(_array_bytes(value, self._path))]}
        _refuse(self._path, value)

    def _add(self, tensor: AnyTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _add_host(self, tensor: HostTensor) -> int:
        return self._add(tensor if self._host else tensor.in_torch())

    def _refuse_depth(self) -> NoReturn:
        """It is too deep; and if a container met itself on the way, it would have gone on forever."""
        seen: set[int] = set()
        for depth, value in enumerate(self._open):
            if id(value) in seen:
                path = self._path_of(self._keys[: self._above + depth])
                raise UnsupportedState(f"{path} contains itself; break the cycle")
            seen.add(id(value))
        raise UnsupportedState(f"{self._path} is nested more than {MAX_DEPTH} levels deep; flatten it")

    def _list(self, value: Iterable[object]) -> Json:
        return [
            item if type(item) is str and item.isascii() else self._item(item, index)  # often names of parameters
            for index, item in enumerate(value)
        ]

    def _pairs(self, value: dict[object, object]) -> Json:
        pairs: list[Json] = []
        for key, item in value.items():
            known = key if type(key) is str and key.isascii() else encode_key(key, f"a key of {self._path}")
            kind = type(item)
            if (
                item is None
                or kind is bool
                or (kind is int and -_SMALL < item < _SMALL)  # type: ignore[operator]
                or (kind is float and item - item == 0.0)  # type: ignore[operator]  # finite
                or (kind is str and item.isascii())  # type: ignore[attr-defined]
            ):
                pairs.append([known, item])
            elif kind is dict and not item:  # a parameter without optimizer state
                pairs.append([known, {"dict": []}])
            else:
                pairs.append([known, self._item(item, key)])
        return pairs

    def _item(self, value: object, key: object) -> Json:
        kind = type(value)
        if kind is not dict and kind is not list:
            if kind in self._plain.kinds and self._plain.has(value):
                self.tensors.append(_detached(value))
                return {"tensor": len(self.tensors) - 1}
            leaf = encode_leaf(value)  # most items are leaves (a generator's state has hundreds)
            if leaf is not NOT_A_LEAF:
                return leaf
        self._keys.append(key)
        found = self._encode(value)
        self._keys.pop()
        return found

    def _elements(self, value: Iterable[object]) -> Json:
        return _encode_elements(value, self._path)

    def _defaultdict(self, value: defaultdict[object, object]) -> Json:
        factory: Any = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", None)
        if factory is not None and (name is None or _FACTORIES.get(name) is not factory):
            _refuse(f"{self._path}.default_factory", factory)
        return [name, self._pairs(value)]

    _containers: dict[type, Callable[[_Encoder, Any], Json]] = {  # noqa: RUF012
        list: _list,
        tuple: lambda self, value: {"tuple": self._list(value)},
        set: lambda self, value: {"set": self._elements(value)},
        frozenset: lambda self, value: {"frozenset": self._elements(value)},
        dict: lambda self, value: {"dict": self._pairs(value)},
        OrderedDict: lambda self, value: {"ordereddict": self._pairs(value)},
        Counter: lambda self, value: {"counter": self._pairs(value)},
        defaultdict: lambda self, value: {"defaultdict": self._defaultdict(value)},
        Node: lambda self, value: value.json,
    }


def _encode_elements(value: Iterable[object], path: str) -> Json:
    return sorted((encode_key(item, f"an element of {path}") for item in value), key=canonical_json)


def encode_key(value: object, path: str) -> Json:
    """A dictionary's key as JSON; raises UnsupportedState, naming ``path``, for one that cannot be stored."""
    if type(value) is str and value.isascii():  # nearly all are
        return value
    if type(value) is tuple:
        return {"tuple": [encode_key(item, path) for item in value]}
    if type(value) is frozenset:
        return {"frozenset": _encode_elements(value, path)}
    leaf = encode_leaf(value)
    if leaf is NOT_A_LEAF:
        _refuse(path, value)
    return leaf


def decode_key(node: Json) -> Any:
    """The key that was encoded."""
    return _Decoder(()).decode(node)


def _storable_tensor(value: Tensor, path: str) -> Tensor:
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        _refuse(path, value)
    if value.is_quantized or value.is_nested or value.is_meta or value.layout is not torch.strided:
        kinds = {"quantized": value.is_quantized, "nested": value.is_nested, "meta": value.is_meta}
        kinds["sparse"] = value.is_sparse
        kind = next((kind for kind, is_it in kinds.items() if is_it), str(value.layout))
        raise UnsupportedState(f"{path} is a {kind} tensor; use a plain dense one, or leave it out")
    try:
        code_of(value.dtype)
    except UnsupportedState as error:
        raise UnsupportedState(f"{path}: {error}") from None
    return value


class _PlainTensors(NamedTuple):
    """Tensors that can surely be stored: nobody need look closer, nor know their paths."""

    kinds: frozenset[Any]
    dtypes: frozenset[Any]
    layout: Any

    def has(self, value: object) -> TypeGuard[Tensor]:
        """Whether a value of one of the ``kinds`` is one of them."""
        if type(value) not in self.kinds:
            return False
        tensor: Any = value
        return tensor.layout is self.layout and tensor.dtype in self.dtypes and not (tensor.is_nested or tensor.is_meta)


def _plain_tensors() -> _PlainTensors:
    if "torch" not in sys.modules:
        return _PlainTensors(frozenset(), frozenset(), None)
    return _plain_tensors_of_torch()


@cache
def _plain_tensors_of_torch() -> _PlainTensors:
    import torch

    dtypes = frozenset(torch_dtype(code) for code in DTYPE_CODES.values())
    return _PlainTensors(frozenset({torch.Tensor, torch.nn.Parameter}), dtypes, torch.strided)


def _detached(value: Tensor) -> Tensor:
    value = value.detach()
    return value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value


def _array_bytes(value: np.ndarray[Any, Any], path: str) -> HostTensor:
    try:
        storable_dtype(value.dtype.str)
    except ValueError:
        raise UnsupportedState(f"{path} is a NumPy array of {value.dtype}; use numbers, booleans or dates") from None
    return HostTensor(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def _refuse(path: str, value: object) -> NoReturn:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise UnsupportedState(
        f"{path} is a {kind}, which cannot be stored without pickle. Pass an object whose state_dict() holds plain "
        "values (numbers, strings, tensors, arrays, lists, tuples, sets, dicts), or leave it out."
    )


class _Decoder:
    def __init__(self, tensors: Sequence[AnyTensor], *, host: bool = False) -> None:
        self._tensors = tensors
        self._host = host

    def decode(self, node: Json) -> Any:
        if isinstance(node, list):
            return self._items(node)
        if not isinstance(node, dict):
            return node
        ((tag, payload),) = node.items()
        decode = self._containers.get(tag)
        return decode_leaf(tag, payload, host=self._host) if decode is None else decode(self, payload)

    def _items(self, payload: Json) -> list[Any]:
        if not isinstance(payload, list):
            raise TypeError(f"a list was expected, not {payload!r}")
        return [self.decode(node) for node in payload]

    def _pairs(self, payload: Json) -> dict[Any, Any]:
        pairs = [(self.decode(key), self.decode(value)) for key, value in payload]
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    def _defaultdict(self, payload: Json) -> defaultdict[Any, Any]:
        name, pairs = payload
        return defaultdict(None if name is None else _FACTORIES[name], self._pairs(pairs))

    def _tensor(self, index: Json) -> AnyTensor:
        if type(index) is not int or index < 0:
            raise ValueError(f"{index!r} is not a tensor index")
        return self._tensors[index]

    def _array(self, payload: Json) -> np.ndarray[Any, Any]:
        name, shape, index = payload
        dtype, tensor = storable_dtype(name), self._tensor(index)
        data = tensor.array if isinstance(tensor, HostTensor) else tensor.numpy(force=True)
        if data.dtype != np.uint8 or data.ndim != 1 or math.prod(shape) * dtype.itemsize != data.size:
            raise ValueError(f"tensor {index} does not hold an array of {name} and shape {shape}")
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = data
        return array

    _containers: dict[str, Callable[[_Decoder, Any], object]] = {  # noqa: RUF012
        "tuple": lambda self, payload: tuple(self._items(payload)),
        "set": lambda self, payload: set(self._items(payload)),
        "frozenset": lambda self, payload: frozenset(self._items(payload)),
        "dict": _pairs,
        "ordereddict": lambda self, payload: OrderedDict(self._pairs(payload)),
        "counter": lambda self, payload: Counter(self._pairs(payload)),
        "defaultdict": _defaultdict,
        "tensor": _tensor,
        "array": _array,
    }


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
