"""Objects as files under one directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random

from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage.abilities import Put
from holdfast.storage.base import Buffer, ObjectInfo
from holdfast.storage.buffers import as_views, check_complete, check_range
from holdfast.storage.files import POSIX, FileSystem, Listed
from holdfast.storage.local_batch import LocalBatch
from holdfast.storage.local_errors import explained, read_error
from holdfast.storage.local_writes import MARK, LocalWrites
from holdfast.storage.names import check_name, check_prefix, is_name

_RESERVE = "reserve+"  # no object's name
_STALE_S = 3600.0  # a temporary untouched for so long has lost its writer


class LocalStore:
    """A Store on any filesystem with hard links and a truthful fsync.

    A put writes a temporary file next to the object, makes it durable, links it to its name, then makes the names of
    the directory and of all its parents durable, whichever process created them: another one may have made a directory
    without having synced it yet. Deletes are not made durable; a power cut may undo them.
    """

    def __init__(self, root: str | os.PathLike[str], files: FileSystem = POSIX, runtime: Runtime = SYSTEM) -> None:
        self._root = os.path.abspath(root)
        self._files = files
        self._writes = LocalWrites(self._root, files, runtime)
        self._swept = False

    @property
    def url(self) -> str:
        return self._root

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        path = self._path(name)
        views = as_views(data)
        with explained(path):
            temporary = self._writes.temporary(path)
            try:
                self._writes.write(temporary, views)
                self._writes.publish(temporary, path, create=create)
            finally:
                self._writes.discard(temporary)
            self._writes.sync_names([path])
            self._sweep(path)

    @contextmanager
    def together(self) -> Iterator[Put]:
        """Put objects that get their names, and are durable, when the block has ended: see ``abilities.together``."""
        batch = LocalBatch(self._writes, self._path)
        try:
            yield batch.put
            batch.seal()
        finally:
            batch.discard()

    def get(self, name: str) -> Buffer:
        path = self._path(name)
        try:
            return self._files.read(path, 0, None)
        except OSError as error:
            raise read_error(name, path, error) from error

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        path = self._path(name)
        check_range(start, stop)
        try:
            if start == stop:  # nothing to read, but the object must be there and reach that far
                size_bytes = self._files.stat(path).size_bytes
                return check_complete(name, b"", min(start, size_bytes), stop)
            return check_complete(name, self._files.read(path, start, stop, into), start, stop)
        except OSError as error:
            raise read_error(name, path, error) from error

    def forget(self, name: str) -> None:
        """Drop what the machine's memory holds of an object: the next read comes from the disk."""
        with suppress(OSError):  # the read that follows tells
            self._files.forget(self._path(name))

    def path(self, name: str) -> str | None:
        """The file that an object is, for who can read files faster; None where it is none of this machine."""
        return self._path(name) if self._files is POSIX else None

    def reserve(self, size_bytes: int) -> None:
        """Reserve at least this much disk space in a file that is not an object. Raises StorageFull."""
        path = os.path.join(self._root, _RESERVE)
        with explained(path):
            if self._size_bytes(path) >= size_bytes:
                return
            temporary = self._writes.temporary(path)
            try:
                self._writes.write(
                    temporary, [memoryview(Random(0).randbytes(size_bytes))]
                )  # not to be compressed away
                self._files.rename(temporary, path)
            finally:
                self._writes.discard(temporary)

    def release(self) -> int:
        """Give free what was reserved; how much that was."""
        path = os.path.join(self._root, _RESERVE)
        with explained(path):
            size_bytes = self._size_bytes(path)
            self._writes.discard(path)
            return size_bytes

    def sweep(self) -> None:
        """Remove what dead writers left."""
        self._sweep_before(self.now_s())

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        return (info for name in self.names(prefix, after=after) if (info := self._info(name)))

    def names(self, prefix: str = "", *, after: str = "") -> Iterator[str]:
        """The names that ``list`` gives, without a look at the objects."""
        check_prefix(prefix)
        check_prefix(after)
        return self._walk(prefix[: prefix.rfind("/") + 1], prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        for path in [self._path(name) for name in names]:
            with explained(path):
                self._writes.discard(path)
                self._prune(path)

    def remove_temporaries(self, is_left: Callable[[ObjectInfo], bool]) -> None:
        """Remove temporary files that nobody will finish; each is named after the object it was to become."""
        with explained(self._root), suppress(FileNotFoundError):
            for path in list(self._temporaries(self._root)):
                with suppress(FileNotFoundError):  # finished meanwhile
                    name = os.path.relpath(path, self._root).partition(MARK)[0]
                    info = self._files.stat(path)
                    if is_left(ObjectInfo(name=name, size_bytes=info.size_bytes, modified_s=info.modified_s)):
                        self._writes.discard(path)
                        self._prune(path)

    def now_s(self) -> float:
        with explained(self._root):
            clock = self._writes.temporary(os.path.join(self._root, "clock"))
            try:
                self._files.close(self._writes.create(clock))
                return self._files.stat(clock).modified_s
            finally:
                self._writes.discard(clock)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, check_name(name))

    def _prune(self, path: str) -> None:
        """Remove the directories above ``path`` that hold nothing any more."""
        directory = os.path.dirname(path)
        with suppress(OSError):
            while directory != self._root:
                self._files.rmdir(directory)
                directory = os.path.dirname(directory)

    def _sweep(self, path: str) -> None:
        """Once, remove what dead writers left anywhere under the root; the object just written tells the time."""
        if self._swept:
            return
        self._swept = True
        with suppress(OSError):  # the put has succeeded whatever happens here
            self._sweep_before(self._files.stat(path).modified_s)

    def _sweep_before(self, now_s: float) -> None:
        with suppress(OSError):  # others may sweep at the same time
            for leftover in list(self._temporaries(self._root)):
                if now_s - self._files.stat(leftover).modified_s > _STALE_S:
                    self._writes.discard(leftover)
                    self._prune(leftover)

    def _size_bytes(self, path: str) -> int:
        try:
            return self._files.stat(path).size_bytes
        except FileNotFoundError:
            return 0

    def _temporaries(self, directory: str) -> Iterator[str]:
        for entry in self._files.scan(directory):
            path = os.path.join(directory, entry.name)
            if entry.is_directory and is_name(entry.name):
                yield from self._temporaries(path)
            elif MARK in entry.name:
                yield path

    def _walk(self, directory: str, prefix: str, after: str) -> Iterator[str]:
        """Names below ``directory`` (empty or ending in a slash), in name order; reads no directory in vain."""
        for name in sorted(self._names(directory)):
            if name.endswith("/"):
                past = after > name and not after.startswith(name)
                if not past and (name.startswith(prefix) or prefix.startswith(name)):
                    yield from self._walk(name, prefix, after)
            elif name.startswith(prefix) and name > after:
                yield name

    def _names(self, directory: str) -> Iterator[str]:
        path = os.path.join(self._root, directory)
        entries: Iterable[Listed] = ()
        with explained(path), suppress(FileNotFoundError, NotADirectoryError):
            entries = self._files.scan(path)
        for entry in entries:
            if is_name(entry.name):
                # Names are compared as a whole, so a directory sorts by its name with the slash: a-b, a.b, a/b.
                yield directory + entry.name + ("/" if entry.is_directory else "")

    def _info(self, name: str) -> ObjectInfo | None:
        path = os.path.join(self._root, name)
        with explained(path), suppress(FileNotFoundError):
            info = self._files.stat(path)
            return ObjectInfo(name=name, size_bytes=info.size_bytes, modified_s=info.modified_s)
        return None  # deleted since the directory was read
