"""Deletes what no commit refers to any more: dropped checkpoints after a grace time, and orphans of older terms.

Deletion follows the commit that dropped a checkpoint, never precedes it. Everything is timed by the store's clock. A
checkpoint under a reader's lease stays, with what it stands on. Nothing is deleted while a newer catalog cannot be
read: it might refer to what looks unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.chain import Chain, Head
from holdfast.checkpoint.changes import forget_garbage, own
from holdfast.checkpoint.lease import live_leases, remove_expired
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    DATA_PREFIX,
    HISTORY_PREFIX,
    LINEAGE_LENGTH,
    Garbage,
    catalog_name,
    history_name,
    object_name,
    term_of,
)
from holdfast.storage import ObjectInfo, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection removed."""

    checkpoints: int = 0
    objects: int = 0
    size_bytes: int = 0


def collect_dropped(store: Store, chain: Chain, *, term: int, grace_s: float) -> Collected:
    """Delete the objects of checkpoints that were dropped longer than ``grace_s`` ago, then say so in a commit."""
    head = own(chain.head(), term)
    if head.damaged or not head.catalog.garbage:
        return Collected()
    readers = live_leases(store, "reader")
    if any(lease.damaged for lease in readers):
        return Collected()  # somebody reads, and what is unknown
    now_s = store.now_s()
    leased = {name for lease in readers for name in lease.checkpoints}
    due = frozenset(
        item for item in head.catalog.garbage if now_s - item.dropped_s >= grace_s and item.folder not in leased
    )
    if not due:
        return Collected()
    objects = {info.name: info for item in due for info in _objects(store, item)}
    store.delete(list(objects))
    chain.commit(forget_garbage(due, term=term))
    dropped = sum(not item.names for item in due)
    return Collected(checkpoints=dropped, objects=len(objects), size_bytes=_size(objects.values()))


def _size(objects: Iterable[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in objects)


def collect_orphans(store: Store, chain: Chain, *, term: int, grace_s: float) -> Collected:
    """Delete what writers of older terms left behind, old catalogs and unused history pages."""
    head = own(chain.head(), term)
    if head.damaged:
        return Collected()
    now_s = store.now_s()
    found = [info for info in _unreferenced(store, head, term) if now_s - info.modified_s >= grace_s]
    store.delete([info.name for info in found])
    remove_expired(store)
    return Collected(objects=len(found), size_bytes=_size(found))


def _objects(store: Store, item: Garbage) -> list[ObjectInfo]:
    """What is still there of it."""
    if not item.names:
        return list(store.list(object_name(item.folder, "")))
    folders = {name.rpartition("/")[0] + "/" for name in item.names}
    return [info for folder in sorted(folders) for info in store.list(folder) if info.name in item.names]


def _unreferenced(store: Store, head: Head, term: int) -> Iterator[ObjectInfo]:
    known = {folder for entry in (*head.entries, *head.catalog.priority) for folder in entry.folders}
    known |= {item.folder for item in head.catalog.garbage} | {each.folder for each in head.catalog.outlines}
    for info in store.list(DATA_PREFIX):
        identifier = info.name.removeprefix(DATA_PREFIX).partition("/")[0]
        written = term_of(identifier)
        if written is not None and written < term and identifier not in known:
            yield info
    pages = {page.ref.name for page in head.catalog.pages}
    not_yet = history_name(head.catalog.number + 1, "")  # for a catalog that may still come
    yield from (info for info in store.list(HISTORY_PREFIX) if info.name not in pages and info.name < not_yet)
    oldest = catalog_name(max(0, head.catalog.number - LINEAGE_LENGTH))
    yield from (info for info in store.list(CATALOG_PREFIX) if info.name < oldest)
