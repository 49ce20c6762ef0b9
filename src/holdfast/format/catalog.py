"""The catalog: the committed root of a run, and the records and intents it stands on (docs/spec/catalog.md).

Catalogs are numbered; each names its parent. The newest one is the head and decides what exists. A commit is the
exclusive creation of the next number. The catalog itself stays small: older checkpoints move to immutable history
pages, and everything about a checkpoint's bytes stands in its record and manifests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.format.document import parse, seal, unseal
from holdfast.types import EXACTLY, CheckpointInfo, Kind, Stored

CATALOG_PREFIX = "catalog/"
DATA_PREFIX = "data/"
LINEAGE_LENGTH = 32  # ancestors a catalog names, so that a writer can tell whether its commit counted
HISTORY_PREFIX = "history/"
_TIMES = ("stall_s", "duration_s")  # of an entry; left out where they are not known
_ID = re.compile(r"s(\d{12,})-t(\d{5,})-[0-9a-f]+")


def catalog_name(number: int) -> str:
    """The object of catalog ``number``; names sort like numbers."""
    return f"{CATALOG_PREFIX}{number:012d}"


def checkpoint_id(step: int, term: int, token: str) -> str:
    """A checkpoint's name: unique by its token, readable by its step and term."""
    return f"s{step:012d}-t{term:05d}-{token}"


def term_of(identifier: str) -> int | None:
    """The term in a checkpoint id; None if it is none."""
    match = _ID.fullmatch(identifier)
    return int(match.group(2)) if match else None


def history_name(number: int, token: str) -> str:
    """The object of a history page that was written for catalog ``number``."""
    return f"{HISTORY_PREFIX}{number:012d}-{token}"


def object_name(identifier: str, leaf: str) -> str:
    """An object of a checkpoint."""
    return f"{DATA_PREFIX}{identifier}/{leaf}"


def intent_name(identifier: str) -> str:
    """The object that publishes a save before its parts are written."""
    return object_name(identifier, "intent")


def part_name(identifier: str, rank: int) -> str:
    """One writer's manifest."""
    return object_name(identifier, f"part-{rank:05d}")


def record_name(identifier: str) -> str:
    """The list of a checkpoint's parts."""
    return object_name(identifier, "checkpoint")


def _metrics_to_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    values = {name: float(value) for name, value in metrics.items()}  # a NumPy number's repr would not be read back
    return {name: value if math.isfinite(value) else repr(value) for name, value in values.items()}


def _metrics_from_json(body: dict[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in body.items()}


def _stored_from_json(body: list[Any]) -> Stored:
    bits, method, difference = body
    if not (isinstance(bits, int) and isinstance(method, str) and isinstance(difference, bool)):
        raise ValueError(f"{body!r} does not say how a table is stored")
    return Stored(bits=bits, method=method, difference=difference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Another object, by name and content."""

    name: str
    size_bytes: int
    digest: str

    def to_json(self) -> list[Any]:
        """As JSON."""
        return [self.name, self.size_bytes, self.digest]

    @classmethod
    def from_json(cls, body: list[Any]) -> Ref:
        """The inverse of to_json."""
        name, size_bytes, digest = body
        return cls(name=name, size_bytes=size_bytes, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What all writers of one save agree on before they write: published first, committed when all parts are there."""

    checkpoint: str
    step: int
    term: int
    kind: Kind
    parent: str | None
    base: str | None
    world: int
    created_s: float
    overlap: str
    tag: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    restores: int = 0  # of the model, ever
    stored: Mapping[str, Stored] = field(default_factory=dict)  # how, of the tables that are not stored exactly

    def precision(self, table: str) -> Stored:
        """How a table is stored, by every writer."""
        return self.stored.get(table, EXACTLY)

    def encode(self) -> bytes:
        """The intent's object."""
        return seal("intent", 1, self.to_json())

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str) -> Intent:
        """Parse and check the object ``name``."""
        body = unseal("intent", 1, data, name=name)
        return parse(name, lambda: cls.from_json(body))

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        body = {key: getattr(self, key) for key in self.__slots__}
        stored = {table: [each.bits, each.method, each.difference] for table, each in self.stored.items()}
        return {**body, "kind": self.kind.value, "metrics": _metrics_to_json(self.metrics), "stored": stored}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Intent:
        """The inverse of to_json."""
        kind, metrics = Kind(body["kind"]), _metrics_from_json(body["metrics"])
        stored = {table: _stored_from_json(each) for table, each in body["stored"].items()}
        return cls(**{**body, "kind": kind, "metrics": metrics, "stored": stored})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A checkpoint's parts: where they are or, of a single writer in a grid, the ``manifest`` itself as JSON."""

    checkpoint: str
    parts: tuple[Ref, ...]
    manifest: dict[str, Any] | None = None

    def encode(self) -> bytes:
        """The record's object."""
        body: dict[str, Any] = {"checkpoint": self.checkpoint, "parts": [part.to_json() for part in self.parts]}
        if self.manifest is not None:
            body["manifest"] = self.manifest
        return seal("checkpoint", 1, body)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str, verified: bool = False) -> Record:
        """Parse and check the object ``name``; ``verified``: its bytes were compared with their digest."""
        body = unseal("checkpoint", 1, data, name=name, verified=verified)
        parts = parse(name, lambda: tuple(Ref.from_json(part) for part in body["parts"]))
        return parse(name, lambda: cls(checkpoint=body["checkpoint"], parts=parts, manifest=body.get("manifest")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint in the catalog: what users see, and its record.

    Its objects lie in the folder of its own name and in those of the rounds that rearranged its rows.
    """

    info: CheckpointInfo
    record: Ref
    rounds: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where its objects lie."""
        return (self.info.id, *self.rounds)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        info = self.info
        body = {key: getattr(info, key) for key in info.__slots__}
        body = {key: value for key, value in body.items() if value is not None or key not in _TIMES}
        metrics = _metrics_to_json(info.metrics)
        rounds = {"rounds": list(self.rounds)} if self.rounds else {}
        return {**body, "kind": info.kind.value, "metrics": metrics, "record": self.record.to_json(), **rounds}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Entry:
        """The inverse of to_json."""
        fields = dict(body)
        record, rounds = Ref.from_json(fields.pop("record")), tuple(fields.pop("rounds", ()))
        fields["kind"], fields["metrics"] = Kind(fields["kind"]), _metrics_from_json(fields["metrics"])
        return cls(info=CheckpointInfo(**fields), record=record, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Objects that wait for deletion: all of a folder (a dropped checkpoint's, a round's), or the ``names`` alone.

    ``folder`` is also what a reader's lease names to keep them. ``dropped_s`` is by the store's clock.
    """

    folder: str
    dropped_s: float
    names: tuple[str, ...] = ()

    def to_json(self) -> list[Any]:
        """As JSON."""
        return [self.folder, self.dropped_s, *([list(self.names)] if self.names else [])]

    @classmethod
    def from_json(cls, body: list[Any]) -> Garbage:
        """The inverse of to_json."""
        folder, dropped_s, *names = body
        return cls(folder=folder, dropped_s=dropped_s, names=tuple(names[0]) if names else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineRef:
    """Where the outline is of what one writer saved above a baseline."""

    baseline: str
    rank: int
    ref: Ref

    @property
    def folder(self) -> str:
        """Where it lies."""
        return self.ref.name.removeprefix(DATA_PREFIX).partition("/")[0]

    def to_json(self) -> list[Any]:
        """As JSON."""
        return [self.baseline, self.rank, *self.ref.to_json()]

    @classmethod
    def from_json(cls, body: list[Any]) -> OutlineRef:
        """The inverse of to_json."""
        baseline, rank, *ref = body
        return cls(baseline=baseline, rank=rank, ref=Ref.from_json(ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A history page: an immutable list of older entries."""

    ref: Ref
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """One committed state of a run. ``entries`` are the newer checkpoints; ``pages`` hold the older ones."""

    run: str
    number: int
    parent: Ref | None
    term: int
    writer: str
    commit: str
    reason: str
    created_s: float
    head: str | None  # the checkpoint that training stands on
    entries: tuple[Entry, ...] = ()
    pages: tuple[Page, ...] = ()
    garbage: tuple[Garbage, ...] = ()
    lineage: tuple[tuple[int, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    outlines: tuple[OutlineRef, ...] = ()
    priority: tuple[Entry, ...] = ()  # rows saved since ``head``, oldest first: no checkpoints

    def encode(self) -> bytes:
        """The catalog's object."""
        body = {key: getattr(self, key) for key in self.__slots__}
        body["parent"] = self.parent.to_json() if self.parent else None
        body["entries"] = [entry.to_json() for entry in self.entries]
        body["pages"] = [[*page.ref.to_json(), page.entries] for page in self.pages]
        body["garbage"] = [item.to_json() for item in self.garbage]
        body["lineage"] = [list(item) for item in self.lineage]
        body["outlines"] = [outline.to_json() for outline in self.outlines]
        body["priority"] = [entry.to_json() for entry in self.priority]
        for optional in ("outlines", "priority"):
            if not body[optional]:
                del body[optional]
        return seal("catalog", 1, body)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str) -> Catalog:
        """Parse and check the object ``name``."""
        body = unseal("catalog", 1, data, name=name)
        return parse(name, lambda: cls._from_json(body))

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> Catalog:
        fields = dict(body)
        fields["parent"] = Ref.from_json(body["parent"]) if body["parent"] else None
        fields["entries"] = tuple(Entry.from_json(entry) for entry in body["entries"])
        fields["pages"] = tuple(Page(ref=Ref.from_json(page[:3]), entries=page[3]) for page in body["pages"])
        fields["garbage"] = tuple(Garbage.from_json(item) for item in body["garbage"])
        fields["lineage"] = tuple((number, commit) for number, commit in body["lineage"])
        fields["outlines"] = tuple(OutlineRef.from_json(outline) for outline in body.get("outlines", ()))
        fields["priority"] = tuple(Entry.from_json(entry) for entry in body.get("priority", ()))
        return cls(**fields)

    def descends_from(self, number: int, commit: str) -> bool:
        """Whether this catalog is, or names among its recent ancestors, the given commit."""
        return (self.number, self.commit) == (number, commit) or (number, commit) in self.lineage

    def ancestors(self) -> tuple[tuple[int, str], ...]:
        """The lineage a child of this catalog states."""
        return ((self.number, self.commit), *self.lineage)[:LINEAGE_LENGTH]


def encode_page(entries: tuple[Entry, ...]) -> bytes:
    """A history page's object."""
    return seal("history", 1, {"entries": [entry.to_json() for entry in entries]})


def decode_page(data: bytes | bytearray | memoryview, *, name: str) -> tuple[Entry, ...]:
    """Parse and check the history page ``name``."""
    body = unseal("history", 1, data, name=name)
    return parse(name, lambda: tuple(Entry.from_json(entry) for entry in body["entries"]))
