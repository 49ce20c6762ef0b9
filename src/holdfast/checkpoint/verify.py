"""Reads every byte of a run and compares it with the checksum or digest that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.chain import Chain
from holdfast.checkpoint.read import VerifiedReader
from holdfast.checkpoint.restore import WORKERS, Progress, read_state
from holdfast.errors import DamagedData, StorageError
from holdfast.format.catalog import Entry, Intent, intent_name
from holdfast.format.manifest import Manifest, Place
from holdfast.storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A damaged object and the checkpoint it was found in (None: a catalog)."""

    checkpoint: str | None
    object_name: str
    what: str


def verify_run(store: Store, chain: Chain, *, progress: Progress | None = None) -> list[Problem]:
    """Every problem in every kept checkpoint and in the catalogs."""
    try:
        head = chain.head(skip_damaged=True)
    except DamagedData as error:  # no catalog at all can be read
        return [Problem(checkpoint=None, object_name=error.object_name, what=error.what)]
    if head is None:
        return []
    problems = [Problem(checkpoint=None, object_name=name, what="cannot be read") for name in head.damaged]
    problems += _reread_catalog(store, head.ref.name)
    reader = VerifiedReader(store)
    for entry in head.entries:
        problems += _verify_checkpoint(store, reader, entry, progress)
    return problems


def _reread_catalog(store: Store, name: str) -> list[Problem]:
    try:
        Chain(store).head()
        return []
    except (DamagedData, StorageError) as error:
        return [Problem(checkpoint=None, object_name=getattr(error, "object_name", name), what=str(error))]


def _verify_checkpoint(
    store: Store, reader: VerifiedReader, entry: Entry, progress: Progress | None
) -> Iterator[Problem]:
    try:
        name = intent_name(entry.info.id)
        Intent.decode(store.get(name), name=name)
        parts = reader.parts(entry)
    except (DamagedData, StorageError) as error:
        yield _problem(entry, error, entry.record.name)
        return
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="holdfast-verify") as pool:
        for manifest in parts:
            checks = _checks(reader, manifest)
            for (object_name, _), result in zip(checks, pool.map(_attempt, (c for _, c in checks)), strict=True):
                if isinstance(result, Exception):
                    yield _problem(entry, result, object_name)
                elif progress and isinstance(result, int):
                    progress(result)


def _checks(reader: VerifiedReader, manifest: Manifest) -> list[tuple[str, Callable[[], object]]]:
    """What to read of a part, each with the object it lies in: heads, chunks, and the state tree as a whole."""
    places = [chunk.place for table in manifest.tables for chunk in table.chunks]
    places += [chunk.place for chunk in manifest.state]
    checks: list[tuple[str, Callable[[], object]]] = []
    checks += [(bundle.name, partial(reader.directory, bundle)) for bundle in manifest.bundles]
    checks += [(manifest.bundles[place.bundle].name, partial(_read, reader, manifest, place)) for place in places]
    return [*checks, (manifest.checkpoint, partial(read_state, reader, manifest))]


def _read(reader: VerifiedReader, manifest: Manifest, place: Place) -> int:
    return len(reader.chunk(manifest.bundles[place.bundle], place))


def _attempt(check: Callable[[], object]) -> object:
    try:
        return check()
    except (DamagedData, StorageError) as error:
        return error


def _problem(entry: Entry, error: Exception, name: str) -> Problem:
    damaged = error.object_name if isinstance(error, DamagedData) else name
    return Problem(checkpoint=entry.info.id, object_name=damaged, what=str(error))
