"""How the fields of messages are written, derived from their types."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.wire.arrays import read_payload, write_payload
from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.sheet import Cursor, Sheet
from holdfast.errors import ConfigurationError

_NUMBER = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_BYTE = struct.Struct("<B")
_LENGTH = struct.Struct("<I")
_NUMBERS_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Codec:
    """Writes a value to a sheet; reads one from a cursor, or raises ``MalformedFrame``."""

    write: Callable[[Sheet, Any], None]
    read: Callable[[Cursor], Any]


def codec_of(hint: Any, name: str = "") -> Codec:
    """Of a type; ``name`` is the field's, which decides where the core calls the type opaque."""
    if hint is Any:
        return OPAQUE[name]
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional(codec_of(arguments[0], name))
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(codec_of(arguments[0], name))
    if origin in (Mapping, dict):
        return _mapping(codec_of(arguments[0]), codec_of(arguments[1], name))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint)
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return record(hint)
    raise TypeError(f"no frame holds a {hint} ({name}); give the field one of the types of docs/spec/cluster.md")


def record(kind: type) -> Codec:
    """Of a dataclass or named tuple: its fields in order."""
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    codecs = [codec_of(hints[name], name) for name in names]
    writes = [(attrgetter(name), codec.write) for name, codec in zip(names, codecs, strict=True)]
    reads = [codec.read for codec in codecs]
    is_keyword_only = is_dataclass(kind) and any(each.kw_only for each in fields(kind))

    def write(sheet: Sheet, value: Any) -> None:
        for get, put in writes:
            put(sheet, get(value))

    def read(cursor: Cursor) -> Any:
        return kind(*[read(cursor) for read in reads])

    def read_by_name(cursor: Cursor) -> Any:
        return kind(**{name: read(cursor) for name, read in zip(names, reads, strict=True)})

    return Codec(write, read_by_name if is_keyword_only else read)


def _write_int(sheet: Sheet, value: int) -> None:
    if not 0 <= value < _NUMBERS_END:
        raise ConfigurationError(f"{value} cannot be sent: numbers are at least 0 and less than 2**63")
    sheet.head += _NUMBER.pack(value)


def _read_int(cursor: Cursor) -> int:
    (value,) = cursor.numbers(_NUMBER)
    if value >= _NUMBERS_END:
        raise MalformedFrame(f"the number {value} is not less than 2**63")
    return int(value)


def _write_bytes(sheet: Sheet, value: bytes) -> None:
    sheet.head += _LENGTH.pack(len(value))
    sheet.head += value


def _read_bytes(cursor: Cursor) -> bytes:
    (size,) = cursor.numbers(_LENGTH)
    return bytes(cursor.piece(size))


def _read_str(cursor: Cursor) -> str:
    try:
        return _read_bytes(cursor).decode()
    except UnicodeDecodeError:
        raise MalformedFrame("a text is not UTF-8") from None


def _read_bool(cursor: Cursor) -> bool:
    (value,) = cursor.numbers(_BYTE)
    if value > 1:
        raise MalformedFrame(f"{value} stands where there is 0 or 1")
    return bool(value)


def _optional(codec: Codec) -> Codec:
    def write(sheet: Sheet, value: Any) -> None:
        sheet.head += _BYTE.pack(value is not None)
        if value is not None:
            codec.write(sheet, value)

    return Codec(write, lambda cursor: codec.read(cursor) if _read_bool(cursor) else None)


def _sequence(codec: Codec) -> Codec:
    def write(sheet: Sheet, values: tuple[Any, ...]) -> None:
        sheet.head += _LENGTH.pack(len(values))
        for value in values:
            codec.write(sheet, value)

    def read(cursor: Cursor) -> tuple[Any, ...]:
        (count,) = cursor.numbers(_LENGTH)
        return tuple([codec.read(cursor) for _ in range(count)])

    return Codec(write, read)


def _mapping(keys: Codec, values: Codec) -> Codec:
    def write(sheet: Sheet, mapping: Mapping[Any, Any]) -> None:
        sheet.head += _LENGTH.pack(len(mapping))
        for key, value in mapping.items():
            keys.write(sheet, key)
            values.write(sheet, value)

    def read(cursor: Cursor) -> dict[Any, Any]:
        (count,) = cursor.numbers(_LENGTH)
        found = {keys.read(cursor): values.read(cursor) for _ in range(count)}
        if len(found) < count:
            raise MalformedFrame("a mapping has the same key twice")
        return found

    return Codec(write, read)


def _choice(kind: type[Enum]) -> Codec:
    choices = list(kind)
    codes = {choice: _BYTE.pack(code) for code, choice in enumerate(choices)}

    def write(sheet: Sheet, value: Enum) -> None:
        sheet.head += codes[value]

    def read(cursor: Cursor) -> Enum:
        (code,) = cursor.numbers(_BYTE)
        if code >= len(choices):
            raise MalformedFrame(f"{code} is no {kind.__name__}")
        choice: Enum = choices[code]
        return choice

    return Codec(write, read)


_PLAIN = {
    int: Codec(_write_int, _read_int),
    bool: Codec(lambda sheet, value: sheet.head.append(value), _read_bool),
    float: Codec(lambda sheet, value: sheet.head.extend(_FLOAT.pack(value)), lambda cursor: cursor.numbers(_FLOAT)[0]),
    bytes: Codec(_write_bytes, _read_bytes),
    str: Codec(lambda sheet, value: _write_bytes(sheet, value.encode()), _read_str),
}
_PAYLOAD = Codec(write_payload, read_payload)


def _read_stripes(cursor: Cursor) -> StripeSet:
    try:
        return StripeSet.from_arrays(read_payload(cursor))
    except ValueError as error:
        raise MalformedFrame(str(error)) from None


# What fields of type Any are, by name: the core does not look into them.
OPAQUE = {
    "rows": _PAYLOAD,
    "values": _PAYLOAD,
    "gradients": _PAYLOAD,
    "stripes": Codec(lambda sheet, value: write_payload(sheet, value.to_arrays()), _read_stripes),
    "records": _PAYLOAD,
    "dense": _optional(_PAYLOAD),
    "place": _optional(_PLAIN[bytes]),
}
