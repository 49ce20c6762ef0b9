"""Edits of the numbers in a run's documents, with every digest that follows from them made right again."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.format.document import canonical_json, digest

Json = Any
Path = tuple[int | str, ...]
_NUMBERS = ("u1", "u2", "u4", "i1", "i2", "i4", "i8")  # how an outline types what it packs


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change of one document."""

    name: str
    path: Path
    what: str


class Documents:
    """The documents of a run by name, taken apart; bundles are none."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = {name: data for name, data in objects.items() if data.startswith(b"holdfast ")}
        head = max(name for name in self.objects if name.startswith("catalog/"))
        kinds: dict[str, list[str]] = {}
        for name, data in sorted(self.objects.items()):
            kind = data.split(b" ")[1].decode()
            kinds.setdefault("older" if kind == "catalog" and name != head else kind, []).append(name)
        rare = [*kinds.pop("older", []), *kinds.pop("intent", []), *kinds.pop("lease", [])]
        self._kinds = [*kinds.values()] * 4 + [rare]  # what no restore reads is edited less often

    def edited(self, chance: random.Random) -> tuple[Edit, dict[str, bytes]]:
        """A random edit, and all documents that are different after it."""
        while True:
            name = chance.choice(chance.choice(self._kinds))
            line, body = _opened(self.objects[name])
            places = list(_places(body))
            if not places:
                continue
            path = chance.choice(places)
            what = _change(body, path, chance)
            if what is not None:
                edit = Edit(name=name, path=path, what=what)
                return edit, self.resealed(name, _sealed(line, _packed(body)))

    def changed(self, name: str, change: Callable[[Json], object]) -> dict[str, bytes]:
        """All documents that are different after a change of one of them."""
        line, body = _opened(self.objects[name])
        change(body)
        return self.resealed(name, _sealed(line, _packed(body)))

    def resealed(self, name: str, data: bytes) -> dict[str, bytes]:
        """The edited document, and those that refer to it, up to the catalog, as their writers would seal them."""
        changed, waiting = {name: data}, [name]
        while waiting:
            named = waiting.pop()
            before, after = self.objects[named], changed[named]
            old, new = digest(before), digest(after)
            for other in self.objects:
                text = changed.get(other, self.objects[other])
                if other != named and old.encode() in text:
                    line, body = _opened(text)
                    changed[other] = _sealed(line, _packed(_pointed(body, named, old, new, len(after))))
                    waiting.append(other)
                    # What refers to ``other`` still names it by its first digest: it is looked for by that.
        return {each: text for each, text in changed.items() if text != self.objects[each]}


def _opened(data: bytes) -> tuple[list[str], Json]:
    line, _, body = data.partition(b"\n")
    return line.decode().split(" "), _unpacked(json.loads(body))


def _sealed(line: list[str], body: Json) -> bytes:
    try:
        text = canonical_json(body)
    except ValueError:  # what Python's JSON writes of inf and NaN
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return f"{' '.join(line[:3])} {digest(text)}\n".encode() + text


class _Packed(list[Any]):
    """Numbers that an outline keeps as bytes in base64."""


class _Nested(dict[str, Any]):
    """JSON that a manifest keeps as text: the codecs of a chunk."""


def _unpacked(node: Json) -> Json:
    if isinstance(node, dict):
        return {key: _unpacked(value) for key, value in node.items()}
    if isinstance(node, str) and node.startswith("{"):
        return _Nested(json.loads(node))
    if isinstance(node, list) and len(node) == 2 and node[0] in _NUMBERS and isinstance(node[1], str):
        return _Packed(np.frombuffer(base64.b64decode(node[1]), dtype=f"<{node[0]}").tolist())
    return [_unpacked(value) for value in node] if isinstance(node, list) else node


def _packed(node: Json) -> Json:
    if isinstance(node, _Nested):
        return json.dumps(node, separators=(",", ":"))
    if isinstance(node, _Packed):
        low, high = min([0, *node]), max([0, *node])
        kind = next(kind for kind in _NUMBERS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
        return [kind, base64.b64encode(np.array(node, dtype=f"<{kind}").tobytes()).decode()]
    if isinstance(node, dict):
        return {key: _packed(value) for key, value in node.items()}
    return [_packed(value) for value in node] if isinstance(node, list) else node


def _pointed(node: Json, name: str, old: str, new: str, size: int) -> Json:
    """The same with the digest of a document, and its size beside its name, brought up to date."""
    if isinstance(node, list):
        if name in node and old in node and node.index(old) == node.index(name) + 2:
            at = node.index(name)
            node = [*node[: at + 1], size, new, *node[at + 3 :]]
        found = [_pointed(value, name, old, new, size) for value in node]
        return _Packed(found) if isinstance(node, _Packed) else found
    if isinstance(node, dict):
        return type(node)({key: _pointed(value, name, old, new, size) for key, value in node.items()})
    return new if node == old else node


def _places(node: Json, path: Path = ()) -> Iterator[Path]:
    """Every number, and every list item that can be deleted, doubled or exchanged with the next."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        if isinstance(node, list) or (isinstance(value, int | float) and not isinstance(value, str)):
            yield (*path, key)
        yield from _places(value, (*path, key))


def _change(body: Json, path: Path, chance: random.Random) -> str | None:
    """Change what is at a path; says how, or None if that made no difference."""
    *above, key = path
    holder = body
    for step in above:
        holder = holder[step]
    before = holder[key]
    if isinstance(holder, list) and chance.random() < (0.3 if _is_number(before) else 1.0):
        return _change_list(holder, key, chance)  # type: ignore[arg-type]
    if not _is_number(before):
        return None
    after = chance.choice(_values(before, chance))
    if isinstance(holder, _Packed) and (type(after) is not int or not -(2**63) <= after < 2**63):
        return None  # its bytes cannot say that
    if type(after) is type(before) and after == before:
        return None
    holder[key] = after
    return f"{before!r} becomes {after!r}"


def _is_number(value: Json) -> bool:
    return isinstance(value, bool | int | float)


def _values(before: Json, chance: random.Random) -> list[Json]:
    small = chance.randint(-3, 3)
    return [
        *(before + step for step in (1, -1, 1, -1, 8, -8, small, small * 4096)),
        *(before * factor for factor in (2, -1)),
        *(0, 1, -1, 64, 2**31, 2**32, 2**40, -(2**40), 2**62, 2**63 - 1, 2**63, 10**30, chance.randint(0, 200)),
        *(before + 0.5, float(before), float("nan"), float("inf"), True, False, None, "1", "", [], {}, [before]),
    ]


def _change_list(holder: list[Any], key: int, chance: random.Random) -> str | None:
    how = chance.choice(["deleted", "doubled", "exchanged with the next"])
    if how == "deleted":
        del holder[key]
    elif how == "doubled":
        holder.insert(key, holder[key])
    elif key + 1 < len(holder) and holder[key] != holder[key + 1]:
        holder[key], holder[key + 1] = holder[key + 1], holder[key]
    else:
        return None
    return how
