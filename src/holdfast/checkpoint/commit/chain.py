"""The chain of catalogs: reads the head, commits the next one.

A commit is one exclusive creation of the next catalog number. It counts only if it is afterwards the head or an
ancestor of the head: a number may be free because old catalogs were collected, long after others moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.checkpoint.commit.inventory import Inventory
from holdfast.checkpoint.commit.pages import HistoryPage, Pages, listed
from holdfast.checkpoint.commit.second_look import SecondLook
from holdfast.errors import DamagedData, ObjectExists, ObjectNotFound, RunError
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    DATA_PREFIX,
    Catalog,
    CommitEvent,
    Entry,
    Garbage,
    OutlineRef,
    Ref,
    catalog_name,
    term_of,
)
from holdfast.format.document import digest
from holdfast.format.history import Delta
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.abilities import list_names
from holdfast.storage.reserve import put_small

_EVENTS = 64  # that a catalog tells of; the latest
_ATTEMPTS = 100  # lost races before a commit gives up
_CATALOGS_LOST = (
    "holds no catalog, but {url}/{folder} contains data: the run's catalogs, the only record of its checkpoints, "
    "were lost or deleted. Nothing was changed. Restore catalog/ and history/ (from a backup or from the bucket's "
    "earlier versions); to start over instead, use another URL or delete data/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest readable catalog, and everything the run lists.

    Args:
        catalog: The catalog itself.
        ref: Its name, size and digest.
        inventory: The checkpoints and the garbage that the run lists.
        pages: The history pages that the catalog refers to.
        damaged: Newer catalogs that could not be read.
        newest_number: The highest catalog number seen, readable or not.
    """

    catalog: Catalog
    ref: Ref
    inventory: Inventory
    pages: tuple[HistoryPage, ...] = ()
    damaged: tuple[str, ...] = ()
    newest_number: int = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All checkpoints, oldest first."""
        return self.inventory.entries

    @property
    def by_id(self) -> Mapping[str, Entry]:
        """Entries by checkpoint id, oldest first."""
        return self.inventory.by_id

    @property
    def garbage(self) -> tuple[Garbage, ...]:
        """What was dropped and awaits deletion."""
        return self.inventory.garbage

    def find(self, identifier: str) -> Entry | None:
        """The entry of a checkpoint or a priority save."""
        saved = (each for each in self.catalog.priority if each.info.id == identifier)
        return self.by_id.get(identifier) or next(saved, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What the next catalog should say."""

    reason: str
    term: int
    head: str | None
    entries: tuple[Entry, ...]
    garbage: tuple[Garbage, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    outlines: tuple[OutlineRef, ...] = ()
    priority: tuple[Entry, ...] = ()
    is_event: bool = False  # the run's history tells of it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The next head, if the commit succeeds, and its catalog's bytes."""

    head: Head
    data: bytes


Change = Callable[[Head | None], Draft | None]  # None: the head is already as it should be


class Chain:
    """Reads and extends the catalogs of one run. Not thread-safe; one per writer or reader."""

    def __init__(self, store: Store, *, writer: str = "reader", runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._writer = writer
        self._runtime = runtime
        self._pages = Pages(store, runtime=runtime)
        self._look = SecondLook(store, runtime)
        self._known: Head | None = None

    def store_s(self) -> float:
        """The store's clock."""
        return self._store.now_s()

    def head(self, *, skip_damaged: bool = False) -> Head | None:
        """The newest catalog; None for an empty run. Damaged ones raise, or are skipped and listed.

        Data without any catalog is no empty run: whoever began anew there would collect it as orphans.
        """
        head = self._newest(skip_damaged=skip_damaged)
        if head is None and (folder := self._data_folder()) is not None:
            # A run's first catalog precedes its data. So it is there now if it was merely written since we looked.
            head = self._newest(skip_damaged=skip_damaged)
            if head is None:
                raise DamagedData(CATALOG_PREFIX, _CATALOGS_LOST.format(url=self._store.url, folder=folder))
        return head

    def _newest(self, *, skip_damaged: bool) -> Head | None:
        tried = 0
        problem: DamagedData | None = None
        while (numbers := self._newer_numbers()) and numbers[0] > tried:
            tried, problem = numbers[0], self._take_in(numbers)
            if problem is None:
                break
            # Look again: others may have committed meanwhile, and collected what was to be read.
        if problem is not None and not skip_damaged:
            raise problem
        if problem is not None and self._known is None:
            raise DamagedData(catalog_name(tried), "no catalog of this run can be read; nothing was changed")
        if self._known is not None and self._known.damaged and not skip_damaged:
            name = self._known.ref.name
            raise DamagedData(self._known.damaged[0], f"cannot be read; the newest readable catalog is {name}")
        return self._known

    def look_anew(self) -> None:
        """Forget what is known: the next look reads everything again."""
        self._known = None

    def is_gone(self) -> bool:
        """Whether the newest catalog that is known is no longer there: it goes with the whole run alone."""
        if self._known is None:
            return False
        newest = self._known.newest_number
        return newest not in _numbers(list_names(self._store, CATALOG_PREFIX, after=catalog_name(newest - 1)))

    def commit(self, change: Change, *, skip_damaged: bool = False) -> Head:
        """Commit what ``change`` makes of the current head; plans again after a lost race.

        On top of a damaged catalog only with ``skip_damaged``: what it alone refers to is then lost from view.
        """
        for _ in range(_ATTEMPTS):
            head = self.head(skip_damaged=skip_damaged)
            draft = change(head)
            if draft is None:
                assert head is not None  # no change leaves an empty run as it is
                return head
            planned = self._plan(head, draft)
            try:
                put_small(self._store, planned.head.ref.name, planned.data, create=True)
            except ObjectExists:
                if not self._is_ours(planned.head.catalog):
                    continue
            return self._confirm(planned.head, change)
        raise RunError(
            f"{self._store.url}: lost {_ATTEMPTS} races to commit the next catalog; too many concurrent writers"
        )

    def _data_folder(self) -> str | None:
        """The folder of some checkpoint's objects, if there is any."""
        names = (info.name for info in self._store.list(DATA_PREFIX))
        folders = (name.removeprefix(DATA_PREFIX).partition("/")[0] for name in names)
        return next((DATA_PREFIX + folder for folder in folders if term_of(folder) is not None), None)

    def _newer_numbers(self) -> list[int]:
        """Catalogs that came after what is known, newest first."""
        after = catalog_name(self._known.newest_number) if self._known else ""
        return sorted(_numbers(list_names(self._store, CATALOG_PREFIX, after=after)), reverse=True)

    def _take_in(self, numbers: list[int]) -> DamagedData | None:
        """Know the newest of these catalogs that can be read; why the newest of all cannot, if so."""
        problem: DamagedData | None = None
        damaged: list[str] = []
        for number in numbers:
            try:
                self._known = self._load(number, damaged=tuple(damaged), newest=numbers[0])
                return problem
            except DamagedData as error:
                problem = problem or error
                damaged.append(catalog_name(number))
        if self._known is not None:
            self._known = replace(self._known, damaged=tuple(damaged), newest_number=numbers[0])
        return problem

    def _load(self, number: int, *, damaged: tuple[str, ...], newest: int) -> Head:
        name = catalog_name(number)
        catalog, ref = self._look(name, lambda: self._read_catalog(name))
        if catalog.number != number:
            raise DamagedData(name, f"claims to be catalog {catalog.number}")
        pages = self._pages.read(catalog.pages, self._known.pages if self._known else ())
        inventory = listed(pages, Delta.of(catalog), name=name)
        return Head(catalog=catalog, ref=ref, inventory=inventory, pages=pages, damaged=damaged, newest_number=newest)

    def _read_catalog(self, name: str) -> tuple[Catalog, Ref]:
        data = self._store.get(name)
        return Catalog.decode(data, name=name), Ref(name=name, size_bytes=len(data), digest=digest(data))

    def _plan(self, head: Head | None, draft: Draft) -> _Planned:
        """What the draft makes of the head. Its pages are written; that they are used depends on the commit."""
        number = head.newest_number + 1 if head else 1
        before = head.inventory if head else Inventory()
        delta = before.until(draft.entries, draft.garbage)
        inventory = before.after(delta)
        inline = Delta.of(head.catalog).then(delta) if head else delta
        placed = self._pages.place(head.pages if head else (), inline, inventory, number)
        catalog = Catalog(
            run=head.catalog.run if head else self._runtime.token() + self._runtime.token(),
            number=number,
            parent=head.ref if head else None,
            term=draft.term,
            writer=self._writer,
            commit=self._runtime.token() + self._runtime.token(),
            reason=draft.reason,
            created_s=self._runtime.wall_s(),
            head=draft.head,
            entries=placed.inline.entries,
            changed=placed.inline.changed,
            dropped=placed.inline.dropped,
            pages=tuple(each.page for each in placed.pages),
            garbage=placed.inline.garbage,
            collected=placed.inline.collected,
            lineage=head.catalog.ancestors() if head else (),
            options=draft.options,
            outlines=draft.outlines,
            priority=draft.priority,
        )
        catalog = replace(catalog, events=_events(head, catalog, delta, inventory) if draft.is_event else _told(head))
        data = catalog.encode()
        ref = Ref(name=catalog_name(number), size_bytes=len(data), digest=digest(data))
        planned = Head(catalog=catalog, ref=ref, inventory=inventory, pages=placed.pages, newest_number=number)
        return _Planned(head=planned, data=data)

    def _is_ours(self, catalog: Catalog) -> bool:
        """Whether the object that is in the way is our own put, acknowledged late."""
        name = catalog_name(catalog.number)
        try:
            return Catalog.decode(self._store.get(name), name=name).commit == catalog.commit
        except (DamagedData, ObjectNotFound):
            return False

    def _confirm(self, ours: Head, change: Change) -> Head:
        """Our catalog is written: whether it counts."""
        self._known = ours
        newest = self.head()
        if newest is not None and newest.catalog.descends_from(ours.catalog.number, ours.catalog.commit):
            return ours
        if newest is not None and change(newest) is None:  # it did, so long ago that no lineage tells
            return newest
        self._known = None
        raise RunError(
            f"{ours.ref.name}: written too late: the run had already moved on, so this commit does not count"
        )


def _told(head: Head | None) -> tuple[CommitEvent, ...]:
    """The events that a run's next catalog goes on to tell of."""
    return head.catalog.events if head else ()


def _events(head: Head | None, catalog: Catalog, delta: Delta, inventory: Inventory) -> tuple[CommitEvent, ...]:
    """Those, and that of this catalog."""
    standing = inventory.by_id.get(catalog.head or "")
    event = CommitEvent(
        reason=catalog.reason,
        at_s=catalog.created_s,
        term=catalog.term,
        writer=catalog.writer,
        step=standing.info.step if standing else None,
        abandoned=sum(entry.info.abandoned for entry in delta.changed),
    )
    return (*_told(head), event)[-_EVENTS:]


def _numbers(names: Iterable[str]) -> Iterator[int]:
    for name in names:
        leaf = name.removeprefix(CATALOG_PREFIX)
        if leaf.isdigit():
            yield int(leaf)
