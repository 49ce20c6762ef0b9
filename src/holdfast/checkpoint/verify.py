"""Reads every byte of a run and compares it with the checksum or digest that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.chain import Chain, Head
from holdfast.checkpoint.crew import WORKERS, Progress
from holdfast.checkpoint.read import VerifiedReader
from holdfast.checkpoint.saved_state import read_saved
from holdfast.errors import DamagedData, ObjectNotFound
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    HISTORY_PREFIX,
    Catalog,
    Entry,
    Intent,
    intent_name,
)
from holdfast.format.history import decode_page
from holdfast.format.manifest import Manifest
from holdfast.storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A damaged or missing object and the checkpoint it belongs to (None: a catalog or a history page)."""

    checkpoint: str | None
    object_name: str
    what: str


def verify_run(store: Store, chain: Chain, *, progress: Progress | None = None) -> list[Problem]:
    """Every problem in every kept checkpoint and in the catalogs, older ones too: they are what a run falls back on."""
    problems = {problem.object_name: problem for problem in _verify_chain(store)}
    reader = VerifiedReader(store)
    problems |= {problem.object_name: problem for problem in _verify_outlines(store, chain)}
    for entry in _entries(chain):
        for problem in _verify_checkpoint(store, reader, entry, progress):
            problems.setdefault(problem.object_name, problem)
    return list(problems.values())


def _entries(chain: Chain) -> tuple[Entry, ...]:
    head = _head(chain)
    return (*head.entries, *head.catalog.priority) if head else ()


def _head(chain: Chain) -> Head | None:
    try:
        return chain.head(skip_damaged=True)
    except DamagedData:  # no catalog at all can be read: told already, each by its name
        return None


def _verify_chain(store: Store) -> Iterator[Problem]:
    """Each catalog and history page by itself, then the newest catalog with the pages it names."""
    for info in store.list(CATALOG_PREFIX):
        yield from _check(None, info.name, partial(_decode, store, Catalog.decode, info.name), optional=True)
    for info in store.list(HISTORY_PREFIX):
        yield from _check(None, info.name, partial(_decode, store, decode_page, info.name), optional=True)
    yield from _check(None, CATALOG_PREFIX, Chain(store).head)


def _verify_outlines(store: Store, chain: Chain) -> Iterator[Problem]:
    """Each by itself, with a reader of its own: what a bundle's head says is read from there."""
    head = _head(chain)
    for each in head.catalog.outlines if head else ():
        yield from _check(each.baseline, each.ref.name, partial(VerifiedReader(store).outline, each.ref))


def _verify_checkpoint(
    store: Store, reader: VerifiedReader, entry: Entry, progress: Progress | None
) -> Iterator[Problem]:
    checkpoint, intent = entry.info.id, intent_name(entry.info.id)
    yield from _check(checkpoint, intent, partial(_decode, store, Intent.decode, intent))
    parts: list[Manifest] = []
    yield from _check(checkpoint, entry.record.name, lambda: parts.extend(reader.parts(entry)))
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="holdfast-verify") as pool:
        for manifest in parts:
            reads = _reads(reader, manifest)
            checks = pool.map(lambda read: list(_check(checkpoint, read.object_name, read.act)), reads)
            for read, problems in zip(reads, checks, strict=True):
                yield from problems
                if progress and not problems:
                    progress(read.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Something to read, and the object it lies in."""

    object_name: str
    size_bytes: int
    act: Callable[[], object]


def _reads(reader: VerifiedReader, manifest: Manifest) -> list[_Read]:
    """What to read of a part: the bundles' heads, the chunks, and the state tree as a whole."""
    places = [chunk.place for table in manifest.tables for chunk in table.chunks]
    places += [chunk.place for chunk in manifest.state]
    reads = [_Read(object_name=b.name, size_bytes=0, act=partial(reader.directory, b)) for b in manifest.bundles]
    for place in places:
        bundle = manifest.bundles[place.bundle]
        act = partial(reader.chunk, bundle, place)
        reads.append(_Read(object_name=bundle.name, size_bytes=place.length, act=act))
    state = partial(read_saved, reader, manifest)
    return [*reads, _Read(object_name=manifest.checkpoint, size_bytes=0, act=state)]


def _decode(store: Store, decode: Callable[..., object], name: str) -> object:
    return decode(store.get(name), name=name)


def _check(
    checkpoint: str | None, name: str, read: Callable[[], object], *, optional: bool = False
) -> Iterator[Problem]:
    """The problem with an object, if reading it shows one; an ``optional`` one may be collected meanwhile."""
    try:
        read()
    except DamagedData as error:
        yield Problem(checkpoint=checkpoint, object_name=error.object_name, what=error.what)
    except ObjectNotFound:
        if not optional:
            yield Problem(checkpoint=checkpoint, object_name=name, what="is missing")
