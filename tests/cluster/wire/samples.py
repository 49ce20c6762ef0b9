"""Messages of every type, drawn from the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.wire.arrays import DTYPES
from holdfast.cluster.wire.frames import TYPES

NUMBERS = st.integers(0, 2**63 - 1)
ARRAYS = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hn.arrays(dtype, hn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20))
)
LARGE = st.sampled_from(list(DTYPES.values())).map(lambda dtype: np.zeros((70, 300), dtype))
PLACES = st.none() | st.binary(max_size=20)
PAYLOADS = st.lists(ARRAYS | LARGE, max_size=3).map(tuple)
PLAIN = {int: NUMBERS, bool: st.booleans(), float: st.floats(), str: st.text(max_size=9), bytes: st.binary(max_size=9)}
STRIPES = st.sets(st.integers(0, 2**50), max_size=20).map(lambda found: StripeSet.of(np.array(sorted(found), np.int64)))
ARRAY_FIELDS = ("rows", "values", "gradients", "records")
OPAQUE = {
    **dict.fromkeys(ARRAY_FIELDS, PAYLOADS),
    "stripes": STRIPES,
    "dense": st.none() | PAYLOADS,
    "place": PLACES,
}


def drawn(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return OPAQUE[name]
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is UnionType:
        return st.none() | drawn(arguments[0], name)
    if origin is tuple:
        return st.lists(drawn(arguments[0], name), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(drawn(arguments[0]), drawn(arguments[1], name), max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    hints = get_type_hints(hint)
    names = [each.name for each in fields(hint)] if is_dataclass(hint) else hint._fields
    return st.builds(hint, **{each: drawn(hints[each], each) for each in names})


MESSAGES = st.sampled_from(list(TYPES.values())).flatmap(drawn)


def same(one: Any, other: Any) -> bool:
    """Equal, array by array and bit by bit."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    return bool(one == other)
