"""Writes sections of tensors as bundles, past the page cache.

Some threads take sections from one list and fill frames with them, which keeps a processor busy; others write these
frames, which keeps the disk busy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from holdfast.errors import StorageFull, StorageUnavailable
from holdfast.format.bundle import Member, build_head
from holdfast.format.catalog import object_name
from holdfast.format.document import digest
from holdfast.format.manifest import BundleRef
from holdfast.integrations.dcp.cycle import store_all, store_alone
from holdfast.integrations.dcp.frames import Frame, PlacedSection
from holdfast.integrations.dcp.sections import Sections, Source
from holdfast.integrations.dcp.stored import StoredPiece
from holdfast.kernels.checksums import fast_checksums
from holdfast.kernels.digests import fast_copies
from holdfast.storage import Store
from holdfast.storage.abilities import Head, Put, one_by_one, together

logger = logging.getLogger("holdfast")

StoreMore = Callable[[Iterable[Source]], list[StoredPiece]]  # together with what is being stored
Then = Callable[[list[StoredPiece], StoreMore], None]


def nothing_more(stored: list[StoredPiece], store_more: StoreMore) -> None:
    """What a writer usually does when it is known where everything will be."""


class BundleWriter:
    """Writes one rank's bundles of one checkpoint."""

    def __init__(self, store: Store, checkpoint: str, rank: int) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._rank = rank
        self._lock = threading.Lock()
        self._attempted: list[str] = []

    def write(
        self, sources: Callable[[], Iterable[Source]], *, little: bool = False, then: Then = nothing_more
    ) -> list[StoredPiece]:
        """Store these, in their order. Returns when they are durable.

        If they were written and could not be made durable, they are written again, each waited for by itself.

        Args:
            sources: Gives them, again if they are written again.
            little: Whether they are too small to be worth threads of their own.
            then: Called when it is known where all of them will be, before they are durable, with that and a function
                that stores a little more with them; again if they are written again.
        """
        stored: list[StoredPiece] | None = None
        try:
            with together(self._store) as put:
                stored = self._write(sources(), put, little, then)
        except (StorageUnavailable, StorageFull) as error:
            if stored is None:
                raise
            logger.warning("what was written could not be made durable, and is written again: %s", error)
            self.discard()
            stored = self._write(sources(), one_by_one(self._store), little, then)
        return stored

    def discard(self) -> None:
        """Delete what was written for a checkpoint that will not be."""
        self._store.delete(self._attempted)

    def _write(self, sources: Iterable[Source], put: Put, little: bool, then: Then) -> list[StoredPiece]:
        fast_copies()  # compiled before the threads need them
        fast_checksums()  # for loads after this save
        sections, shelf = Sections(sources), _Shelf(put, partial(self._new_name, self._rank))

        def go_on() -> None:
            then(sections.stored(), partial(self._store_more, put))

        if little:
            store_alone(sections, shelf)
            go_on()
        else:
            store_all(sections, shelf, go_on)
        return sections.stored()

    def _store_more(self, put: Put, sources: Iterable[Source]) -> list[StoredPiece]:
        """In the calling thread, as the rank that there is not."""
        sections = Sections(sources)
        store_alone(sections, _Shelf(put, partial(self._new_name, self._rank + 1)))
        return sections.stored()

    def _new_name(self, rank: int) -> str:
        with self._lock:
            name = object_name(self._checkpoint, f"{rank:05d}-{len(self._attempted) + 1:06d}.safetensors")
            self._attempted.append(name)
        return name


class _Shelf:
    """Puts frames as bundles."""

    def __init__(self, put: Put, new_name: Callable[[], str]) -> None:
        self._put = put
        self._new_name = new_name
        self._lock = threading.Lock()

    def describe(self, frame: Frame) -> None:
        head = _head(frame)
        size_bytes = len(head) + len(frame.body)
        bundle = BundleRef(name=self._name_of(frame), size_bytes=size_bytes, head_bytes=len(head), digest=digest(head))
        frame.describe(bundle, head)

    def put(self, frame: Frame) -> None:
        """Of a frame that is still being hashed, the head last."""
        name = self._name_of(frame)
        if frame.is_described:
            self._put(name, frame.whole())
        else:
            self._put(name, frame.body, head=Head(size_bytes=len(_head(frame)), get=frame.head))
            frame.head()  # raises what kept it from being known, if nobody asked for it

    def _name_of(self, frame: Frame) -> str:
        with self._lock:  # of a frame that one thread hashes and another one puts
            frame.name = frame.name or self._new_name()
        return frame.name


def _head(frame: Frame) -> bytes:
    """Of a bundle of a frame; the chunks' checksums stand in their order, zeros if they are not known yet."""
    directory = [crc for each in frame.placed for crc in each.checksums]
    return build_head([_member(each) for each in frame.placed], len(frame.body), directory)


def _member(placed: PlacedSection) -> Member:
    source, section = placed.section.source, placed.section
    if len(section.data) == source.spec.length:
        return Member(name=source.name, dtype=source.spec.dtype, shape=source.spec.shape, offset=placed.offset)
    name = f"{source.name}+{section.start}"
    return Member(name=name, dtype="U8", shape=(len(section.data),), offset=placed.offset)
