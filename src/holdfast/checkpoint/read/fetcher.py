"""Verified reads: nothing leaves this module without matching its checksum or digest."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.commit.lease import READER, HeldLease
from holdfast.checkpoint.commit.second_look import SecondLook
from holdfast.checkpoint.read.part_agreement import JoinedPart, check_parts
from holdfast.codec.lengths import check_lengths, of_manifest, of_outline
from holdfast.errors import AccessDenied, CheckpointNotFound, DamagedData, ObjectNotFound, StorageFull
from holdfast.format.bundle import BLOCK_BYTES, Directory, read_directory, verify_blocks
from holdfast.format.catalog import Entry, PartList, Ref
from holdfast.format.document import digest
from holdfast.format.manifest import BundleRef, Manifest, Place
from holdfast.format.outline import Outline
from holdfast.format.outline_document import decode_outline
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.abilities import is_remote, path_of

logger = logging.getLogger("holdfast")

Manifests = tuple[Manifest, ...]
Memory = Callable[[int], memoryview]  # gives at least so many bytes to read into


class ChunkSource(Protocol):
    """Where chunks come from. What it gives matches its checksums."""

    def chunk(
        self, bundle: BundleRef, place: Place, start: int, stop: int, *, memory: Memory | None = None
    ) -> memoryview:
        """Bytes ``start .. stop`` of a chunk."""
        ...


class Fetcher:
    """Fetches part lists, manifests and chunks from one store, and remembers the directories it verified."""

    def __init__(self, store: Store, *, runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._look = SecondLook(store, runtime)
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._directories: dict[str, Directory] = {}

    @property
    def store(self) -> Store:
        """The store it reads from."""
        return self._store

    @property
    def is_remote(self) -> bool:
        """Whether reading is waiting for the network."""
        return is_remote(self._store)

    def path(self, bundle: BundleRef) -> str | None:
        """The file that a bundle is, where the store has files."""
        return path_of(self._store, bundle.name)

    def known_directory(self, bundle: BundleRef) -> Directory | None:
        """The block checksums of a bundle, if its head was read before."""
        return self._directories.get(bundle.name)

    def parts(self, entry: Entry, part_list: PartList | None = None) -> Manifests:
        """A checkpoint's manifests, one of each writer; ``part_list``: if it was read already."""
        part_list = part_list or self.part_list(entry)
        if part_list.manifest is not None:
            name = entry.part_list.name
            parts: Manifests = (_checked(entry, Manifest.from_json(part_list.manifest, name=name), name),)
        else:
            parts = tuple(self.part(entry, part) for part in part_list.parts)
        check_parts(entry, [JoinedPart.of(part) for part in parts])
        return parts

    def part_list(self, entry: Entry) -> PartList:
        """A checkpoint's part list."""
        part_list = PartList.decode(self._object(entry.part_list), name=entry.part_list.name, verified=True)
        if part_list.checkpoint != entry.info.id:
            raise DamagedData(entry.part_list.name, f"belongs to checkpoint {part_list.checkpoint}")
        return part_list

    def part(self, entry: Entry, ref: Ref) -> Manifest:
        """One of a checkpoint's manifests."""
        return _checked(entry, Manifest.decode(self._object(ref), name=ref.name, verified=True), ref.name)

    def outline(self, ref: Ref) -> Outline:
        """An outline; the block checksums in it need not be read any more."""
        outline = decode_outline(self._object(ref), name=ref.name)
        check_lengths(of_outline(outline), name=ref.name)
        self._directories |= outline.directories
        return outline

    def chunk(
        self,
        bundle: BundleRef,
        place: Place,
        start: int = 0,
        stop: int | None = None,
        *,
        memory: Memory | None = None,
    ) -> memoryview:
        """Bytes ``start .. stop`` of a chunk, whole blocks of it read and verified; in ``memory`` where given."""
        stop = place.length if stop is None else stop
        low, high = _whole_blocks(place, start, stop)
        directory = self.directory(bundle)

        def read() -> memoryview:
            data = self._bytes(bundle.name, place.offset + low, place.offset + high, memory)
            verify_blocks(data, place.block + low // BLOCK_BYTES, directory, name=bundle.name)
            return data

        return self._look(bundle.name, read)[start - low : stop - low]

    def held(self, bundle: BundleRef, start: int, stop: int) -> HeldBytes:
        """Bytes ``start .. stop`` of a bundle, read in one request, for the chunks in them."""
        try:
            data = self._bytes(bundle.name, start, stop)
        except (DamagedData, ObjectNotFound) as error:
            self.doubt(bundle.name, error.what if isinstance(error, DamagedData) else "is missing")
            data = memoryview(b"")
        return HeldBytes(self, bundle, start, data)

    def doubt(self, name: str, what: str = "some of its bytes are unreadable or do not match their checksums") -> None:
        """Others have read an object without success: the next look at it is a second one, and says so."""
        self._look.doubt(name, what)

    def directory(self, bundle: BundleRef) -> Directory:
        """The block checksums of a bundle, from its verified head."""
        if (known := self._directories.get(bundle.name)) is not None:
            return known
        with self._lock:
            reading = self._reading.setdefault(bundle.name, threading.Lock())
        with reading:  # the workers that read its chunks start together; one of them reads the head for all
            known = self._directories.get(bundle.name)
            return self._look(bundle.name, lambda: self._learn(bundle)) if known is None else known

    def _learn(self, bundle: BundleRef) -> Directory:
        """Verify a bundle's head and remember its checksums."""
        head = self._bytes(bundle.name, 0, bundle.head_bytes)
        if digest(head) != bundle.digest:
            raise DamagedData(bundle.name, "its head does not match the digest in its manifest")
        directory = self._directories[bundle.name] = read_directory(head, name=bundle.name).copy()
        return directory

    def _object(self, ref: Ref) -> memoryview:
        def read() -> memoryview:
            data = memoryview(self._store.get(ref.name))
            if digest(data) != ref.digest or len(data) != ref.size_bytes:
                raise DamagedData(ref.name, "does not match the size and digest in what refers to it")
            return data

        return self._look(ref.name, read)

    def _bytes(self, name: str, start: int, stop: int, memory: Memory | None = None) -> memoryview:
        into = memory(stop - start) if memory else None
        return memoryview(self._store.get_range(name, start, stop, into=into))


class HeldBytes:
    """Bytes of a bundle in memory, for the chunks in them; what is missing or wrong is read separately."""

    def __init__(self, fetcher: Fetcher, bundle: BundleRef, start: int, data: memoryview) -> None:
        self._fetcher = fetcher
        self._bundle = bundle
        self._start = start
        self._data = data

    def chunk(
        self, bundle: BundleRef, place: Place, start: int, stop: int, *, memory: Memory | None = None
    ) -> memoryview:
        """Bytes ``start .. stop`` of a chunk, whole blocks of it verified."""
        low, high = _whole_blocks(place, start, stop)
        begin = place.offset + low - self._start
        data = self._data[begin : begin + high - low] if begin >= 0 else memoryview(b"")
        try:
            if bundle == self._bundle and len(data) == high - low:
                directory = self._fetcher.directory(bundle)
                verify_blocks(data, place.block + low // BLOCK_BYTES, directory, name=bundle.name)
                return data[start - low : stop - low]
        except DamagedData as error:
            self._data = memoryview(b"")  # the others are not worth a look: each is read by itself
            self._fetcher.doubt(bundle.name, error.what)
        return self._fetcher.chunk(bundle, place, start, stop, memory=memory)


def _whole_blocks(place: Place, start: int, stop: int) -> tuple[int, int]:
    """The blocks of a chunk that hold these bytes of it."""
    return start // BLOCK_BYTES * BLOCK_BYTES, min(-(-stop // BLOCK_BYTES) * BLOCK_BYTES, place.length)


def _checked(entry: Entry, manifest: Manifest, name: str) -> Manifest:
    if manifest.checkpoint != entry.info.id:
        raise DamagedData(name, f"belongs to checkpoint {manifest.checkpoint}")
    check_lengths(of_manifest(manifest), name=name)
    return manifest


def lineage(head: Head, checkpoint: str) -> tuple[Entry, ...]:
    """The checkpoint and those it depends on, baseline first."""
    entries = head.by_id
    chain: list[Entry] = []
    wanted: str | None = checkpoint
    while wanted is not None:
        if wanted not in entries:
            raise CheckpointNotFound(f"checkpoint {checkpoint} depends on {wanted}, which is no longer in the run")
        if len(chain) == len(entries):
            raise DamagedData(head.ref.name, f"says that checkpoint {wanted} depends on itself")
        chain.append(entries[wanted])
        wanted = entries[wanted].info.base
    return tuple(reversed(chain))


@contextmanager
def leased(
    store: Store,
    look: Callable[[], Head],
    wanted: Callable[[Head], Iterable[Entry]],
    *,
    warn: Callable[[str], None] = logger.warning,
    runtime: Runtime = SYSTEM,
) -> Iterator[Head]:
    """Protect the folders of these checkpoints from deletion; yields the head as of the lease.

    If no lease can be written, because it is not permitted or the store is full, they are read without one. Lease
    first, then look again: a round that rearranged them just before may have moved them to another folder.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"
    head = look()
    while True:
        folders = sorted({folder for entry in wanted(head) for folder in entry.folders})
        with _held(HeldLease(store, READER, holder, folders, runtime=runtime), store.url, warn):
            head = look()
            if {folder for entry in wanted(head) for folder in entry.folders} <= set(folders):
                yield head
                return


@contextmanager
def _held(lease: HeldLease, url: str, warn: Callable[[str], None]) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(lease)
        except AccessDenied:
            warn(f"{url} cannot be written: reading without a lease, so a prune may interfere")
        except StorageFull:
            warn(f"{url} is full: reading without a lease, so a prune may interfere")
        yield


def find_checkpoint(head: Head | None, step: int | str | None, *, where: str) -> Entry:
    """The newest checkpoint, or that of a step or id; of a step, one on the live timeline before an abandoned one."""
    entries: Sequence[Entry] = head.entries if head else ()
    live = [entry for entry in entries if not entry.info.abandoned]
    if step is None:
        if not live:
            raise CheckpointNotFound(f"{where} holds no checkpoint yet")
        return live[-1]
    for entry in (*reversed(live), *reversed(entries)):
        if step in (entry.info.step, entry.info.id):
            return entry
    steps = ", ".join(str(entry.info.step) for entry in live[-8:]) or "none"
    raise CheckpointNotFound(
        f"{where} holds no checkpoint of {'step ' if isinstance(step, int) else ''}{step}; it holds the steps {steps}"
    )
