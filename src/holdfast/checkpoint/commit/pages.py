"""History pages: where a run's list goes when it grows too long for a catalog.

A catalog holds only a few items; when there are too many, they move to a page, which absorbs earlier pages that are not
much larger. So a run of n commits has at most about log n pages, and rewrites each item about log n times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from holdfast.checkpoint.commit.inventory import Inventory
from holdfast.checkpoint.commit.second_look import SecondLook
from holdfast.errors import DamagedData
from holdfast.format.catalog import PageRef, Ref, history_name
from holdfast.format.document import digest, parse
from holdfast.format.history import Delta, decode_page, encode_page
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.reserve import put_small

_INLINE_ITEMS = 32  # that a catalog says itself, at most
_MERGE_RATIO = 2  # a new page takes in those before it that are at most so many times as large


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A page with what it says, and what the run lists after it, which of all pages only the last one knows.

    Every inventory takes memory for all checkpoints up to it.
    """

    page: PageRef
    delta: Delta
    inventory: Inventory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paginated:
    """The pages of a catalog, and what it says itself."""

    pages: tuple[HistoryPage, ...]
    inline: Delta


class Pages:
    """Reads and writes the pages of one run. A page never changes, so one that is known is not read again."""

    def __init__(self, store: Store, *, runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._runtime = runtime
        self._look = SecondLook(store, runtime)

    def read(self, named: Sequence[PageRef], known: Sequence[HistoryPage]) -> tuple[HistoryPage, ...]:
        """The pages that a catalog names; ``known`` are those of another catalog, the same up to where they part."""
        shared = takewhile(lambda pair: pair[0] == pair[1].page, zip(named, known, strict=False))
        pages = tuple(each for _, each in shared)
        for page in named[len(pages) :]:
            delta = self._look(page.ref.name, partial(self._get, page))
            pages = _with_last(pages, page, delta, listed(pages, delta, name=page.ref.name))
        return pages

    def place(self, pages: tuple[HistoryPage, ...], inline: Delta, inventory: Inventory, number: int) -> Paginated:
        """Move what catalog ``number`` would say itself to a page, if it is too much for it."""
        if inline.items <= _INLINE_ITEMS:
            return Paginated(pages=pages, inline=inline)
        while pages and pages[-1].page.items <= _MERGE_RATIO * inline.items:
            inline = pages[-1].delta.then(inline)
            pages = pages[:-1]
        if inline.items:
            pages = _with_last(pages, self._put(inline, number), inline, inventory)
        return Paginated(pages=pages, inline=Delta())

    def _get(self, page: PageRef) -> Delta:
        name = page.ref.name
        data = self._store.get(name)
        if digest(data) != page.ref.digest:
            raise DamagedData(name, "does not match the digest in its catalog")
        delta = decode_page(data, name=name, verified=True)
        if delta.items != page.items:
            raise DamagedData(name, f"has {delta.items} items, but its catalog says {page.items}")
        return delta

    def _put(self, delta: Delta, number: int) -> PageRef:
        """A page for catalog ``number``; its name tells collection when nobody can come to refer to it."""
        data = encode_page(delta)
        name = history_name(number, self._runtime.token())
        put_small(self._store, name, data)
        return PageRef(ref=Ref(name=name, size_bytes=len(data), digest=digest(data)), items=delta.items)


def listed(pages: Sequence[HistoryPage], delta: Delta, *, name: str) -> Inventory:
    """What a run lists by these pages and then by a delta, that of the object ``name``."""
    return parse(name, lambda: _after(pages).after(delta))


def _after(pages: Sequence[HistoryPage]) -> Inventory:
    """What a run lists by these pages: as the last one knows or, where it was not the last before, by each of them."""
    if pages and pages[-1].inventory is not None:
        return pages[-1].inventory
    inventory = Inventory()
    for page in pages:
        inventory = inventory.after(page.delta)
    return inventory


def _with_last(
    pages: tuple[HistoryPage, ...], page: PageRef, delta: Delta, inventory: Inventory
) -> tuple[HistoryPage, ...]:
    earlier = tuple(replace(each, inventory=None) for each in pages)
    return (*earlier, HistoryPage(page=page, delta=delta, inventory=inventory))
