"""Sealed documents: the small JSON objects of a run (catalogs, manifests, part lists, intents, leases, jobs).

A document is one line ``holdfast <kind> <version> <sha256 of the body>`` and a canonical JSON body. It proves its own
integrity; what refers to it also states the digest of the whole object, up to the catalog (docs/spec/document.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar

from holdfast.errors import DamagedData

Json: TypeAlias = Any
T = TypeVar("T")

_MAX_LINE = 256
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False)


def digest(data: bytes | bytearray | memoryview) -> str:
    """SHA-256 in hex: names content wherever an object refers to another."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Json) -> bytes:
    """One byte string for one value: sorted keys, no spaces, ASCII, no NaN."""
    return _CANONICAL.encode(value).encode("ascii")


def seal(kind: str, version: int, body: Json) -> bytes:
    """The bytes of a document."""
    encoded = canonical_json(body)
    return _first_line(kind, version, encoded) + encoded


def seal_lists(kind: str, version: int, lists: Mapping[str, Iterable[Json]]) -> bytearray:
    """``seal`` for an object of long lists: one item at a time, since all of them at once take ten times the memory."""
    data = bytearray(_first_line(kind, version, b""))
    begin, joint = len(data), b"{"
    for key in sorted(lists):
        data += joint + canonical_json(key) + b":["
        for place, item in enumerate(lists[key]):
            data += b"," + canonical_json(item) if place else canonical_json(item)
        joint = b"],"
    data += b"]}" if lists else b"{}"
    view = memoryview(data)
    view[:begin] = _first_line(kind, version, view[begin:])
    return data


def _first_line(kind: str, version: int, body: bytes | memoryview) -> bytes:
    return f"holdfast {kind} {version} {digest(body)}\n".encode("ascii")


def unseal(kind: str, version: int, data: bytes | bytearray | memoryview, *, name: str, verified: bool = False) -> Json:
    """The body of a document read from the object ``name``; raises DamagedData if a single bit is off.

    ``verified``: the whole object was compared with its digest already.
    """
    raw = bytes(data)
    line, newline, body = raw.partition(b"\n")
    words = line.split(b" ")
    if not newline or len(line) > _MAX_LINE or len(words) != 4 or words[0] != b"holdfast":
        raise DamagedData(name, "is not a Holdfast document (its first line is damaged)")
    if words[1] != kind.encode("ascii"):
        raise DamagedData(name, f"is not a {kind} document (its first line says {words[1]!r})")
    if not verified and words[3] != digest(body).encode("ascii"):
        raise DamagedData(name, "its content does not match its digest")
    if words[2] != str(version).encode("ascii"):
        found = words[2].decode("ascii", "replace")
        raise DamagedData(name, f"is a {kind} of format version {found}; this release reads version {version}")
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedData(name, f"holds no valid JSON: {error}") from error


def parse(name: str, build: Callable[[], T]) -> T:
    """Run ``build``; a missing or ill-typed field of the document ``name`` becomes DamagedData."""
    try:
        return build()
    except ValueError as error:
        raise DamagedData(name, f"has a missing or malformed field: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise DamagedData(name, f"has a missing or malformed field: {error!r}") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
