"""Reads every byte of a run and compares it with the checksum or digest that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.chain import Chain, Head
from holdfast.checkpoint.crew import WORKERS, Progress
from holdfast.checkpoint.read import VerifiedReader, lineage
from holdfast.checkpoint.saved_state import read_saved
from holdfast.checkpoint.second_look import SecondLook
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
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import Doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A damaged or missing object and the checkpoint it belongs to (None: a catalog or a history page)."""

    checkpoint: str | None
    object_name: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found: each damaged object once, and which checkpoints a restore would read damage of."""

    problems: tuple[Problem, ...]
    whole: frozenset[str]  # checkpoints whose own objects are as they were written
    damaged: frozenset[str]

    def verdicts(self, head: Head) -> dict[str, Doubt | None]:
        """What is to become of each suspect checkpoint: None to clear it.

        Where not one checkpoint is whole the store may be at fault, and none is condemned.
        """
        suspects = [entry.info.id for entry in head.entries if entry.info.doubt is Doubt.SUSPECT]
        stands_on = {each: {entry.info.id for entry in lineage(head, each)} for each in suspects}
        condemned = {each: Doubt.CONDEMNED for each in suspects if self.whole and stands_on[each] & self.damaged}
        cleared = {each: None for each in suspects if stands_on[each] <= self.whole}
        return {**condemned, **cleared}


def verify_run(
    store: Store, chain: Chain, *, progress: Progress | None = None, runtime: Runtime = SYSTEM
) -> Verification:
    """Every problem in every kept checkpoint and in the catalogs, older ones too: they are what a run falls back on."""
    reader, look = VerifiedReader(store, runtime=runtime), SecondLook(store, runtime)
    problems = {problem.object_name: problem for problem in _verify_chain(store, look, runtime)}
    problems |= {problem.object_name: problem for problem in _verify_outlines(store, chain, runtime)}
    damaged, entries = set(), _entries(chain)
    for entry in entries:
        found = list(_verify_checkpoint(reader, entry, progress))
        damaged |= {entry.info.id} if found else set()
        for problem in (*_verify_intent(store, look, entry), *found):
            problems.setdefault(problem.object_name, problem)
    whole = {entry.info.id for entry in entries} - damaged
    return Verification(problems=tuple(problems.values()), whole=frozenset(whole), damaged=frozenset(damaged))


def _entries(chain: Chain) -> tuple[Entry, ...]:
    head = _head(chain)
    return (*head.entries, *head.catalog.priority) if head else ()


def _head(chain: Chain) -> Head | None:
    try:
        return chain.head(skip_damaged=True)
    except DamagedData:  # no catalog at all can be read: told already, each by its name
        return None


def _verify_chain(store: Store, look: SecondLook, runtime: Runtime) -> Iterator[Problem]:
    """Each catalog and history page by itself, then the newest catalog with the pages it names."""
    for info in store.list(CATALOG_PREFIX):
        yield from _check(None, partial(_decode, store, look, Catalog.decode, info.name), optional=True)
    for info in store.list(HISTORY_PREFIX):
        yield from _check(None, partial(_decode, store, look, decode_page, info.name), optional=True)
    yield from _check(None, Chain(store, runtime=runtime).head)


def _verify_outlines(store: Store, chain: Chain, runtime: Runtime) -> Iterator[Problem]:
    """Each by itself, with a reader of its own: what a bundle's head says is read from there."""
    head = _head(chain)
    for each in head.catalog.outlines if head else ():
        reader = VerifiedReader(store, runtime=runtime)
        yield from _check(each.baseline, partial(reader.outline, each.ref))


def _verify_intent(store: Store, look: SecondLook, entry: Entry) -> Iterator[Problem]:
    """Which no restore needs."""
    name = intent_name(entry.info.id)
    yield from _check(entry.info.id, partial(_decode, store, look, Intent.decode, name))


def _verify_checkpoint(reader: VerifiedReader, entry: Entry, progress: Progress | None) -> Iterator[Problem]:
    checkpoint = entry.info.id
    parts: list[Manifest] = []
    yield from _check(checkpoint, lambda: parts.extend(reader.parts(entry)))
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="holdfast-verify") as pool:
        for manifest in parts:
            reads = _reads(reader, manifest)
            checks = pool.map(partial(_unless_bad, checkpoint, set()), reads)
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


def _unless_bad(checkpoint: str, bad: set[str], read: _Read) -> list[Problem]:
    """The problem with what is read, if its object is not known as ``bad`` already: a bad read takes its time."""
    if read.object_name in bad:
        return []
    found = list(_check(checkpoint, read.act))
    bad |= {problem.object_name for problem in found}
    return found


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


def _decode(store: Store, look: SecondLook, decode: Callable[..., object], name: str) -> object:
    return look(name, lambda: decode(store.get(name), name=name))


def _check(checkpoint: str | None, read: Callable[[], object], *, optional: bool = False) -> Iterator[Problem]:
    """The problem with an object, if reading it shows one; an ``optional`` one may be collected meanwhile."""
    try:
        read()
    except DamagedData as error:
        if not (optional and isinstance(error.__cause__, ObjectNotFound)):
            yield Problem(checkpoint=checkpoint, object_name=error.object_name, what=error.what)
