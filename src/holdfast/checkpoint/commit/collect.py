"""Deletes what no commit refers to: dropped checkpoints after a grace period, old catalogs, old terms' orphans.

Deletion always follows the commit that dropped a checkpoint. All times are by the store's clock. A checkpoint under a
reader's lease stays, along with everything it depends on. Nothing is deleted while a newer catalog cannot be read: it
might refer to what looks unused. Orphaned data is also kept while a catalog that a take-over had to skip is among the
head's recent ancestors: someone may still recover it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import forget_garbage, own
from holdfast.checkpoint.commit.lease import READER, live_leases, remove_expired
from holdfast.errors import DamagedData, ObjectNotFound
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    DATA_PREFIX,
    HISTORY_PREFIX,
    LINEAGE_LENGTH,
    Catalog,
    Garbage,
    catalog_name,
    history_name,
    object_name,
    term_of,
)
from holdfast.storage import ObjectInfo, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was deleted.

    Args:
        checkpoints: Dropped checkpoints whose objects were deleted.
        objects: How many objects were deleted.
        size_bytes: Their size.
    """

    checkpoints: int = 0
    objects: int = 0
    size_bytes: int = 0

    def __add__(self, other: Collected) -> Collected:
        return Collected(
            checkpoints=self.checkpoints + other.checkpoints,
            objects=self.objects + other.objects,
            size_bytes=self.size_bytes + other.size_bytes,
        )


def collect_dropped(store: Store, chain: Chain, *, term: int, grace_s: float) -> Collected:
    """Delete the objects of checkpoints that were dropped longer than ``grace_s`` ago, then say so in a commit."""
    head = own(chain.head(), term)
    if head.damaged or not head.garbage:
        return Collected()
    readers = live_leases(store, READER)
    if any(lease.damaged for lease in readers):
        return Collected()  # somebody reads, and what is unknown
    now_s = store.now_s()
    leased = {name for lease in readers for name in lease.checkpoints}
    due = frozenset(item for item in head.garbage if now_s - item.dropped_s >= grace_s and item.folder not in leased)
    if not due:
        return Collected()
    objects = garbage_objects(store, due)
    store.delete([info.name for info in objects])
    chain.commit(forget_garbage(due, term=term))
    dropped = sum(not item.names for item in due)
    return Collected(checkpoints=dropped, objects=len(objects), size_bytes=_size(objects))


def garbage_objects(store: Store, garbage: Iterable[Garbage]) -> list[ObjectInfo]:
    """What is still there of it, each object once."""
    return list({info.name: info for item in garbage for info in _objects(store, item)}.values())


def _size(objects: Iterable[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in objects)


def collect_catalogs(store: Store, chain: Chain, *, term: int) -> Collected:
    """Delete the catalogs that no lineage reaches any more, and the history pages that only they named.

    Their age does not matter: whoever was about to read one of them looks for a newer one when it is gone.
    """
    head = own(chain.head(), term)
    if head.damaged:
        return Collected()
    oldest = catalog_name(max(0, head.catalog.number - LINEAGE_LENGTH))
    catalogs = list(store.list(CATALOG_PREFIX))
    old = [info for info in catalogs if info.name < oldest]
    store.delete([info.name for info in old])  # first: a catalog must not outlive a page that it names
    pages = _unnamed_pages(store, head, [info.name for info in catalogs if info.name >= oldest])
    store.delete([info.name for info in pages])
    return Collected(objects=len(old) + len(pages), size_bytes=_size([*old, *pages]))


def _unnamed_pages(store: Store, head: Head, catalogs: Sequence[str]) -> list[ObjectInfo]:
    """The pages that none of these catalogs names, nor one that may still come."""
    not_yet = history_name(head.catalog.number + 1, "")
    named = {page.ref.name for page in head.catalog.pages}
    found = [info for info in store.list(HISTORY_PREFIX) if info.name not in named and info.name < not_yet]
    if not found:
        return []
    try:
        for name in catalogs:
            named |= {page.ref.name for page in Catalog.decode(store.get(name), name=name).pages}
    except (DamagedData, ObjectNotFound):
        return []  # it may name any of them; it will be gone itself after some more commits
    return [info for info in found if info.name not in named]


def collect_orphans(store: Store, chain: Chain, *, term: int, grace_s: float) -> Collected:
    """Delete what writers of older terms left behind."""
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


def referenced_folders(head: Head) -> set[str]:
    """The folders that hold something a catalog refers to or is about to delete itself."""
    known = {folder for entry in (*head.entries, *head.catalog.priority) for folder in entry.folders}
    return known | {item.folder for item in head.garbage} | {each.folder for each in head.catalog.outlines}


def _unreferenced(store: Store, head: Head, term: int) -> Iterator[ObjectInfo]:
    known = referenced_folders(head)
    for info in store.list(DATA_PREFIX) if not head.catalog.passed_over else ():
        identifier = info.name.removeprefix(DATA_PREFIX).partition("/")[0]
        written = term_of(identifier)
        if written is not None and written < term and identifier not in known:
            yield info
