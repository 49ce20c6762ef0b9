"""Reads every byte of a run, checks it against the checksum or digest that names it, and claims against contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.second_look import SecondLook
from holdfast.checkpoint.inspect.skeleton import read_skeleton
from holdfast.checkpoint.inspect.verify_outline import check_outline
from holdfast.checkpoint.inspect.verify_standing import Standing, check_replaced, tips
from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.crew import WORKERS, Progress
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.restore.saved_state import checked_state
from holdfast.codec.chunk import codecs_of, dim_of, stored_columns
from holdfast.errors import CheckpointNotFound, DamagedData, ObjectNotFound
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    HISTORY_PREFIX,
    Catalog,
    Entry,
    Intent,
    intent_name,
)
from holdfast.format.dcp_state import DcpState, is_dcp
from holdfast.format.history import decode_page
from holdfast.format.manifest import BundleRef, Manifest, RowsChunk
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import ColumnSpec, Doubt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A damaged or missing object.

    Args:
        checkpoint: The id of the checkpoint it belongs to. None: a catalog or a history page.
        object_name: The object's name.
        what: What is wrong with it.
    """

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
        stands_on = {each: _stands_on(head, each) for each in suspects}
        cleared = {each: None for each, below in stands_on.items() if below is not None and below <= self.whole}
        lost = [each for each, below in stands_on.items() if below is None or below & self.damaged]
        return {**{each: Doubt.CONDEMNED for each in lost if self.whole}, **cleared}


def _stands_on(head: Head, checkpoint: str) -> set[str] | None:
    """The checkpoint and what its rows stand on; None if that leads nowhere, so that no restore can succeed."""
    try:
        return {entry.info.id for entry in lineage(head, checkpoint)}
    except (CheckpointNotFound, DamagedData):
        return None


def verify_run(
    store: Store, chain: Chain, *, progress: Progress | None = None, runtime: Runtime = SYSTEM
) -> Verification:
    """Every problem in every kept checkpoint and in the catalogs, older ones too: they are what a run falls back on."""
    fetcher, look = Fetcher(store, runtime=runtime), SecondLook(store, runtime)
    problems = {problem.object_name: problem for problem in _verify_chain(store, look, runtime)}
    damaged, entries = set(), _entries(chain)
    known: dict[str, Manifests] = {}  # of those that are as they were written
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="holdfast-verify") as pool:
        for entry in entries:
            found = list(_verify_checkpoint(fetcher, pool, entry, known, progress))
            damaged |= {entry.info.id} if found else set()
            for problem in (*_verify_intent(store, look, entry), *found):
                problems.setdefault(problem.object_name, problem)
    head = _head(chain)
    for problem in _verify_together(fetcher, head, known, runtime) if head else ():
        damaged |= {problem.checkpoint} if problem.checkpoint else set()
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
    """Check each catalog and history page on its own, then the newest catalog with the pages it names."""
    for info in store.list(CATALOG_PREFIX):
        yield from _check(None, partial(_decode, store, look, Catalog.decode, info.name), optional=True)
    for info in store.list(HISTORY_PREFIX):
        yield from _check(None, partial(_decode, store, look, decode_page, info.name), optional=True)
    yield from _check(None, Chain(store, runtime=runtime).head)


def _verify_together(
    fetcher: Fetcher, head: Head, known: Mapping[str, Manifests], runtime: Runtime
) -> Iterator[Problem]:
    """What checkpoints say of each other, and outlines of checkpoints."""
    if head.catalog.head is not None and head.catalog.head not in head.by_id:
        yield Problem(checkpoint=None, object_name=head.ref.name, what=f"lacks its head, {head.catalog.head}")
    standing = Standing(fetcher, head, known)
    for entry in head.entries:
        yield from _check(entry.info.id, partial(standing.check, entry))
    yield from _check(None, standing.check_priority)
    for entry in tips(head):
        yield from _check(entry.info.id, partial(check_replaced, fetcher, head, entry, known))
    for each in head.catalog.outlines:
        fresh = Fetcher(fetcher.store, runtime=runtime)
        yield from _check(None, partial(check_outline, fetcher, fresh, head, each, known))


def _verify_intent(store: Store, look: SecondLook, entry: Entry) -> Iterator[Problem]:
    """Check the intent, which no restore needs."""
    name = intent_name(entry.info.id)
    intents: list[Intent] = []
    yield from _check(entry.info.id, lambda: intents.append(_decode(store, look, Intent.decode, name)))
    for intent in intents:
        info = entry.info
        said = (intent.checkpoint, intent.step, intent.term, intent.kind, intent.parent, intent.base)
        if said != (info.id, info.step, info.term, info.kind, info.parent, info.base):
            yield Problem(checkpoint=info.id, object_name=name, what="disagrees with the catalog about its save")


def _verify_checkpoint(
    fetcher: Fetcher, pool: Executor, entry: Entry, known: dict[str, Manifests], progress: Progress | None
) -> Iterator[Problem]:
    """Its own objects. Where they are as they were written, its parts become ``known``."""
    checkpoint = entry.info.id
    parts: list[Manifest] = []
    yield from _check(checkpoint, lambda: parts.extend(fetcher.parts(entry)))
    is_whole = bool(parts)
    for manifest in parts:
        reads = _reads(fetcher, manifest)
        checks = pool.map(partial(_unless_bad, checkpoint, set()), reads)
        for read, problems in zip(reads, checks, strict=True):
            yield from problems
            is_whole = is_whole and not problems
            if progress and not problems:
                progress(read.size_bytes)
    if is_whole:
        known[checkpoint] = tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Something to read, and the object that holds it."""

    object_name: str
    size_bytes: int
    act: Callable[[], object]


def _unless_bad(checkpoint: str, bad: set[str], read: _Read) -> list[Problem]:
    """The problem with a read, unless its object is already known as ``bad``: bad reads take time."""
    if read.object_name in bad:
        return []
    found = list(_check(checkpoint, read.act))
    bad |= {problem.object_name for problem in found}
    return found


def _reads(fetcher: Fetcher, manifest: Manifest) -> list[_Read]:
    """What to read of a part: the bundles' heads, the chunks, and the state tree as a whole."""
    bundles = manifest.bundles
    reads = [_Read(object_name=b.name, size_bytes=0, act=partial(fetcher.directory, b)) for b in bundles]
    for table in manifest.tables:
        for chunk in table.chunks:
            act = partial(_check_rows, fetcher, bundles[chunk.place.bundle], table.spec.columns, chunk)
            reads.append(_Read(object_name=bundles[chunk.place.bundle].name, size_bytes=chunk.place.length, act=act))
    for piece in manifest.state:
        bundle, place = bundles[piece.place.bundle], piece.place
        reads.append(_Read(object_name=bundle.name, size_bytes=place.length, act=partial(fetcher.chunk, bundle, place)))
    return [*reads, _Read(object_name=manifest.checkpoint, size_bytes=0, act=partial(_check_tree, fetcher, manifest))]


def _check_tree(fetcher: Fetcher, manifest: Manifest) -> None:
    """The state tree must be one, whatever its tensors hold."""
    tree = read_skeleton(fetcher, manifest)
    if is_dcp(tree):
        DcpState.from_tree(tree, name=manifest.checkpoint)
    else:
        checked_state(tree, manifest)


def _check_rows(fetcher: Fetcher, bundle: BundleRef, specs: tuple[ColumnSpec, ...], chunk: RowsChunk) -> None:
    """Read a whole chunk; its ids must match its rows, and its number of escapes must match too."""
    data = fetcher.chunk(bundle, chunk.place)
    checked_ids(chunk, data, name=bundle.name)
    codecs = codecs_of(chunk.codec)
    if codecs is None:
        return
    placed = {each.name: each for each in stored_columns(specs, chunk.rows, chunk.ids, chunk.codec, chunk.escapes)}
    for spec, kept in zip(specs, chunk.escapes, strict=True):
        column, codec = placed[spec.name], codecs[spec.name]
        records = np.frombuffer(data[column.offset : column.offset + column.length], dtype=np.uint8)
        flags = codec.escaped(records.reshape(chunk.rows, -1), dim_of(spec), spec.dtype)
        if int(np.count_nonzero(flags)) != kept:
            raise DamagedData(bundle.name, f"has {np.count_nonzero(flags)} escapes of {spec.name}, not {kept}")


def _decode(store: Store, look: SecondLook, decode: Callable[..., T], name: str) -> T:
    return look(name, lambda: decode(store.get(name), name=name))


def _check(checkpoint: str | None, read: Callable[[], object], *, optional: bool = False) -> Iterator[Problem]:
    """The problem with an object, if reading it shows one; an ``optional`` one may be collected meanwhile."""
    try:
        read()
    except DamagedData as error:
        if not (optional and isinstance(error.__cause__, ObjectNotFound)):
            yield Problem(checkpoint=checkpoint, object_name=error.object_name, what=error.what)
