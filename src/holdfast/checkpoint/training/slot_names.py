"""The column names of an optimizer's slots: their keys if these are valid names, else the keys in encoded form.

A key may be anything hashable: ``weight`` and ``ids`` are taken by the row record itself, ``row.key`` by a keyed table,
``sum.escapes`` by what a codec appends to ``sum``, and a tuple is not a name. Decoding returns exactly the same key.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from holdfast.errors import DamagedData, UnsupportedState
from holdfast.format.document import canonical_json
from holdfast.format.layout import IDS
from holdfast.format.tree import decode_key, encode_key
from holdfast.types import KEYED

WEIGHT = "weight"
_WRITTEN = "slot "  # in front of a key that is written down as JSON
_ESCAPES = ".escapes"


def column_name(key: Hashable) -> str:
    """The column for the slot under ``key``; raises UnsupportedState for a key that cannot be stored."""
    if type(key) is str and _is_name(key):
        return key
    return _WRITTEN + canonical_json(encode_key(key, "the key")).decode()


def slot_key(column: str) -> Any:
    """The key of a column's slot; raises DamagedData for a column that no slot is called by."""
    if not column.startswith(_WRITTEN):
        return column
    try:
        key = decode_key(json.loads(column.removeprefix(_WRITTEN)))
        hash(key)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DamagedData(f"column {column}", f"is not a slot name: {error!r}") from error
    return key


def _is_name(key: str) -> bool:
    taken = key in ("", WEIGHT, IDS) or key.startswith((_WRITTEN, KEYED)) or key.endswith(_ESCAPES)
    return not taken and encode_key(key, "the key") == key


def named_slots(state: dict[Any, Any], where: str) -> dict[str, Any]:
    """A state's values by column, in the order of their names; raises UnsupportedState with the key that has none."""
    try:
        named = {column_name(key): value for key, value in state.items()}
    except UnsupportedState as error:
        raise UnsupportedState(f"{where}: the optimizer's state has a key that cannot be stored: {error}") from None
    return {name: named[name] for name in sorted(named)}


def weight_name(table: str) -> str:
    """A table's name in a state_dict."""
    return table if table == "weight" or table.endswith(".weight") else f"{table}.weight"
