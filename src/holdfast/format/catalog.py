"""The catalog: the committed root of a run, and the part lists and intents it stands on (docs/spec/catalog.md).

Catalogs are numbered; each names its parent. The newest one is the head and decides what exists. A commit is the
exclusive creation of the next number. The catalog itself stays small: older checkpoints move to immutable history
pages, and everything about a checkpoint's bytes stands in its part list and manifests.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.format import fields
from holdfast.format.document import Json, parse, seal, unseal
from holdfast.types import EXACTLY, CheckpointInfo, Doubt, Kind, Stored

CATALOG_PREFIX = "catalog/"
DATA_PREFIX = "data/"
LINEAGE_LENGTH = 32  # ancestors a catalog names, so that a writer can tell whether its commit counted
HISTORY_PREFIX = "history/"
_NO_NUMBERS = ("nan", "inf", "-inf")  # metrics that JSON has no number for
_TIMES = ("stall_s", "duration_s")  # of an entry; left out where they are not known
_ENTRY_FIELDS = {*CheckpointInfo.__slots__, "record", "rounds"}
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


def folder_of(name: str) -> str:
    """The folder that an object of a checkpoint or a round lies in."""
    return name.removeprefix(DATA_PREFIX).partition("/")[0]


def intent_name(identifier: str) -> str:
    """The object that publishes a save before its parts are written."""
    return object_name(identifier, "intent")


def part_name(identifier: str, rank: int) -> str:
    """One writer's manifest."""
    return object_name(identifier, f"part-{rank:05d}")


def part_list_name(identifier: str) -> str:
    """The list of a checkpoint's parts."""
    return object_name(identifier, "checkpoint")


def _metrics_to_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    values = {name: float(value) for name, value in metrics.items()}  # a NumPy number's repr would not be read back
    return {name: value if math.isfinite(value) else repr(value) for name, value in values.items()}


def _metrics_from_json(body: Json) -> dict[str, float]:
    return {name: _metric(value) for name, value in fields.fields(body, "metrics").items()}


def _metric(value: Json) -> float:
    return float(value) if value in _NO_NUMBERS else fields.real(value, "a metric")


def _stored_from_json(body: list[Any]) -> Stored:
    bits, method, difference = fields.items(body, "stored", 3)
    return Stored(
        bits=fields.integer(bits, "the bits of a table", least=1, most=8),
        method=fields.text(method, "the method of a table"),
        difference=fields.flag(difference, "the difference of a table"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Another object, by name and content."""

    name: str
    size_bytes: int
    digest: str

    def to_json(self) -> list[Any]:
        """The stored form, as JSON values."""
        return [self.name, self.size_bytes, self.digest]

    @classmethod
    def from_json(cls, body: list[Any]) -> Ref:
        """Parse and validate the stored form."""
        name, size_bytes, digest = fields.items(body, "a reference", 3)
        return cls(
            name=fields.text(name, "the name of a reference"),
            size_bytes=fields.integer(size_bytes, "the size of a reference"),
            digest=fields.text(digest, "the digest of a reference"),
        )


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
        """The stored form, as JSON values."""
        body = {key: getattr(self, key) for key in self.__slots__}
        stored = {table: [each.bits, each.method, each.difference] for table, each in self.stored.items()}
        return {**body, "kind": self.kind.value, "metrics": _metrics_to_json(self.metrics), "stored": stored}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Intent:
        """Parse and validate the stored form."""
        named = _named(body, body["checkpoint"])
        _require_only(body, {*named, "checkpoint", "world", "overlap", "restores", "stored"})
        stored = fields.fields(body["stored"], "stored")
        return cls(
            checkpoint=_identifier(body["checkpoint"], "checkpoint"),
            world=fields.integer(body["world"], "world", least=1),
            overlap=fields.text(body["overlap"], "overlap"),
            restores=fields.integer(body["restores"], "restores"),
            stored={table: _stored_from_json(each) for table, each in stored.items()},
            **named,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartList:
    """A checkpoint's parts: where they are or, of a single writer in a grid, the ``manifest`` itself as JSON."""

    checkpoint: str
    parts: tuple[Ref, ...]
    manifest: dict[str, Any] | None = None

    def encode(self) -> bytes:
        """The part list's object."""
        body: dict[str, Any] = {"checkpoint": self.checkpoint, "parts": [part.to_json() for part in self.parts]}
        if self.manifest is not None:
            body["manifest"] = self.manifest
        return seal("checkpoint", 1, body)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str, verified: bool = False) -> PartList:
        """Parse and check the object ``name``; ``verified``: its bytes were compared with their digest."""
        body = unseal("checkpoint", 1, data, name=name, verified=verified)
        return parse(name, lambda: cls._from_json(body))

    @classmethod
    def _from_json(cls, body: Json) -> PartList:
        parts = tuple(Ref.from_json(part) for part in fields.items(body["parts"], "parts"))
        manifest = fields.maybe(fields.fields, body.get("manifest"), "manifest")
        if manifest is not None and parts:
            raise ValueError("parts are listed in addition to the manifest of the only one")
        return cls(checkpoint=fields.text(body["checkpoint"], "checkpoint"), parts=parts, manifest=manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint in the catalog: what users see, and its part list.

    Its objects lie in the folder of its own name and in those of the rounds that rearranged its rows.
    """

    info: CheckpointInfo
    part_list: Ref
    rounds: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where its objects lie."""
        return (self.info.id, *self.rounds)

    def to_json(self) -> dict[str, Any]:
        """The stored form, as JSON values."""
        info = self.info
        body = {key: getattr(info, key) for key in info.__slots__}
        body = {key: value for key, value in body.items() if value is not None or key not in (*_TIMES, "doubt")}
        if info.doubt is not None:
            body["doubt"] = info.doubt.value
        metrics = _metrics_to_json(info.metrics)
        rounds = {"rounds": list(self.rounds)} if self.rounds else {}
        return {**body, "kind": info.kind.value, "metrics": metrics, "record": self.part_list.to_json(), **rounds}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Entry:
        """Parse and validate the stored form."""
        _require_only(body, _ENTRY_FIELDS)
        abandoned = fields.flag(body["abandoned"], "abandoned")
        if "doubt" in body and not abandoned:
            raise ValueError("a checkpoint of the live timeline is doubted")
        info = CheckpointInfo(
            id=_identifier(body["id"], "id"),
            size_bytes=fields.integer(body["size_bytes"], "size_bytes"),
            rows_written=fields.integer(body["rows_written"], "rows_written"),
            full_bytes=fields.integer(body["full_bytes"], "full_bytes"),
            abandoned=abandoned,
            doubt=Doubt(body["doubt"]) if "doubt" in body else None,
            stall_s=_time(body, "stall_s"),
            duration_s=_time(body, "duration_s"),
            **_named(body, body["id"]),
        )
        rounds = fields.texts(body["rounds"], "rounds") if "rounds" in body else ()
        return cls(info=info, part_list=Ref.from_json(body["record"]), rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Objects that wait for deletion: all of a folder (a dropped checkpoint's, a round's), or the ``names`` alone.

    ``folder`` is also what a reader's lease names to keep them. ``dropped_s`` is by the store's clock.
    """

    folder: str
    dropped_s: float
    names: tuple[str, ...] = ()

    def to_json(self) -> list[Any]:
        """The stored form, as JSON values."""
        return [self.folder, self.dropped_s, *([list(self.names)] if self.names else [])]

    @classmethod
    def from_json(cls, body: list[Any]) -> Garbage:
        """Parse and validate the stored form."""
        folder, dropped_s, *names = fields.items(body, "garbage")  # no names: all of the folder
        return cls(
            folder=fields.text(folder, "the folder of garbage"),
            dropped_s=fields.real(dropped_s, "dropped_s"),
            names=fields.texts(names[0], "the names of garbage") if names else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineRef:
    """Where the outline is of what one writer saved above a baseline."""

    baseline: str
    rank: int
    ref: Ref

    @property
    def folder(self) -> str:
        """Where it lies."""
        return folder_of(self.ref.name)

    def to_json(self) -> list[Any]:
        """The stored form, as JSON values."""
        return [self.baseline, self.rank, *self.ref.to_json()]

    @classmethod
    def from_json(cls, body: list[Any]) -> OutlineRef:
        """Parse and validate the stored form."""
        baseline, rank, *ref = fields.items(body, "outlines", 5)
        return cls(
            baseline=fields.text(baseline, "the baseline of an outline"),
            rank=fields.integer(rank, "the rank of an outline"),
            ref=Ref.from_json(ref),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A history page: what earlier commits changed, and how many items it says that in."""

    ref: Ref
    items: int

    def to_json(self) -> list[Any]:
        """The stored form, as JSON values."""
        return [*self.ref.to_json(), self.items]

    @classmethod
    def from_json(cls, body: Json) -> PageRef:
        """Parse and validate the stored form."""
        *ref, items = fields.items(body, "pages", 4)
        return cls(ref=Ref.from_json(ref), items=fields.integer(items, "the length of a page", least=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEvent:
    """A commit that is told of long after its catalog is gone: a trainer began, took over, or went back."""

    reason: str
    at_s: float  # by the writer's clock
    term: int
    writer: str
    step: int | None  # that training went on from; None: the beginning
    abandoned: int  # checkpoints that were left

    def to_json(self) -> list[Any]:
        """The stored form, as JSON values."""
        return [getattr(self, key) for key in self.__slots__]

    @classmethod
    def from_json(cls, body: list[Any]) -> CommitEvent:
        """Parse and validate the stored form."""
        reason, at_s, term, writer, step, abandoned = fields.items(body, "events", 6)
        return cls(
            reason=fields.text(reason, "the reason of an event"),
            at_s=fields.real(at_s, "the time of an event"),
            term=fields.integer(term, "the term of an event", least=1),
            writer=fields.text(writer, "the writer of an event"),
            step=fields.maybe(fields.integer, step, "the step of an event"),
            abandoned=fields.integer(abandoned, "the checkpoints that an event abandoned"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """One committed state of a run.

    What earlier commits did to checkpoints and garbage stands in ``pages``; ``entries`` (added), ``changed``,
    ``dropped``, ``garbage`` (added) and ``collected`` say what the latest did on top of that: see format/history.py.
    """

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
    changed: tuple[Entry, ...] = ()
    dropped: tuple[str, ...] = ()
    pages: tuple[PageRef, ...] = ()
    garbage: tuple[Garbage, ...] = ()
    collected: tuple[Garbage, ...] = ()
    lineage: tuple[tuple[int, str], ...] = ()
    events: tuple[CommitEvent, ...] = ()  # the latest, oldest first
    options: dict[str, Any] = field(default_factory=dict)
    outlines: tuple[OutlineRef, ...] = ()
    priority: tuple[Entry, ...] = ()  # rows saved since ``head``, oldest first: no checkpoints

    def encode(self) -> bytes:
        """The catalog's object."""
        body = {key: getattr(self, key) for key in self.__slots__}
        body["parent"] = self.parent.to_json() if self.parent else None
        body["pages"] = [page.to_json() for page in self.pages]
        body["lineage"] = [list(item) for item in self.lineage]
        for several in ("entries", "changed", "garbage", "collected", "events", "outlines", "priority"):
            body[several] = [item.to_json() for item in body[several]]
        for optional in ("changed", "dropped", "collected", "outlines", "priority"):
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
        number = fields.integer(body["number"], "number", least=1)
        _require_only(body, set(cls.__slots__))
        return cls(
            run=fields.text(body["run"], "run"),
            number=number,
            parent=fields.maybe(lambda ref, _: Ref.from_json(ref), body["parent"], "parent"),
            term=fields.integer(body["term"], "term", least=1),
            writer=fields.text(body["writer"], "writer"),
            commit=fields.text(body["commit"], "commit"),
            reason=fields.text(body["reason"], "reason"),
            created_s=fields.real(body["created_s"], "created_s"),
            head=fields.maybe(fields.text, body["head"], "head"),
            entries=tuple(map(Entry.from_json, fields.items(body["entries"], "entries"))),
            changed=tuple(map(Entry.from_json, fields.items(body.get("changed", []), "changed"))),
            dropped=fields.texts(body.get("dropped", []), "dropped"),
            pages=tuple(map(PageRef.from_json, fields.items(body["pages"], "pages"))),
            garbage=tuple(map(Garbage.from_json, fields.items(body["garbage"], "garbage"))),
            collected=tuple(map(Garbage.from_json, fields.items(body.get("collected", []), "collected"))),
            lineage=_lineage(body["lineage"], number),
            events=tuple(map(CommitEvent.from_json, fields.items(body["events"], "events"))),
            options=fields.fields(body["options"], "options"),
            outlines=tuple(map(OutlineRef.from_json, fields.items(body.get("outlines", []), "outlines"))),
            priority=tuple(map(Entry.from_json, fields.items(body.get("priority", []), "priority"))),
        )

    def descends_from(self, number: int, commit: str) -> bool:
        """Whether this catalog is, or names among its recent ancestors, the given commit."""
        return (self.number, self.commit) == (number, commit) or (number, commit) in self.lineage

    @property
    def passed_over(self) -> bool:
        """Whether a number among its recent ancestors is missing: of a catalog that could not be read."""
        numbers = [self.number, *(number for number, _ in self.lineage)]
        return any(later - earlier > 1 for later, earlier in pairwise(numbers))

    def ancestors(self) -> tuple[tuple[int, str], ...]:
        """The lineage a child of this catalog states."""
        return ((self.number, self.commit), *self.lineage)[:LINEAGE_LENGTH]


def _named(body: Json, identifier: str) -> dict[str, Any]:
    """The fields that intents and entries have in common."""
    kind, base = Kind(body["kind"]), fields.maybe(_identifier, body["base"], "base")
    if (base is None) != (kind is Kind.FULL):
        raise ValueError(f"base is {base!r} in a checkpoint of kind {kind.value}")
    step, term = fields.integer(body["step"], "step"), fields.integer(body["term"], "term")
    said = _ID.fullmatch(fields.text(identifier, "id"))
    if said and (int(said.group(1)), int(said.group(2))) != (step, term):
        raise ValueError(f"checkpoint {identifier} claims to be of step {step} and term {term}")
    return {
        "step": step,
        "term": term,
        "kind": kind,
        "parent": fields.maybe(_identifier, body["parent"], "parent"),
        "base": base,
        "created_s": fields.real(body["created_s"], "created_s"),
        "tag": fields.maybe(fields.text, body["tag"], "tag"),
        "metrics": _metrics_from_json(body["metrics"]),
    }


def _identifier(value: Json, what: str) -> str:
    """A checkpoint's id. A run that lists thousands names most of them three times: kept in memory once."""
    return sys.intern(fields.text(value, what))


def _time(body: Json, key: str) -> float | None:
    found = body.get(key)
    return None if found is None else fields.real(found, key, least=0.0)


def _require_only(body: Mapping[str, Json], known: set[str]) -> None:
    """A field that this version does not have is no field of it."""
    if unknown := body.keys() - known:
        raise ValueError(f"unknown field {min(unknown)!r}")


def _lineage(body: Json, number: int) -> tuple[tuple[int, str], ...]:
    """Ancestors, the nearest first."""
    found = []
    for item in fields.items(body, "lineage"):
        below, commit = fields.items(item, "lineage", 2)
        number = fields.integer(below, "a number in lineage", least=1, most=number - 1)
        found.append((number, fields.text(commit, "a commit in lineage")))
    return tuple(found)
