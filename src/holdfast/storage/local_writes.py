"""How a file comes to be under one directory: written under a temporary name, made durable, then given its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from holdfast.errors import ConfigurationError, ObjectExists, StorageUnavailable
from holdfast.runtime import Runtime
from holdfast.storage.files import FileSystem

MARK = "~"  # in every temporary's name and in no object's, so neither is ever taken for the other
_CREATE_ATTEMPTS = 10


class LocalWrites:
    """Writes files below ``root``. Threads may share one."""

    def __init__(self, root: str, files: FileSystem, runtime: Runtime) -> None:
        self.files = files
        self._root = root
        self._runtime = runtime
        self._root_is_durable = False

    def temporary(self, path: str) -> str:
        """A name beside ``path`` that nobody else uses."""
        return f"{path}{MARK}{self._runtime.token()}"

    def write(self, path: str, views: Sequence[memoryview]) -> None:
        """Create a file with these bytes, and make them durable."""
        handle = self.create(path)
        try:
            self.files.write(handle, views)
            self.files.sync(handle)
        finally:
            self.files.close(handle)

    def create(self, path: str) -> int:
        """Create a file and the directories above it, which another process's delete may take away meanwhile."""
        for _ in range(_CREATE_ATTEMPTS):
            with suppress(FileNotFoundError):
                return self.files.create(path)
            with suppress(FileNotFoundError):
                self._make_directory(os.path.dirname(path))
        raise StorageUnavailable(f"{path}: its directory was removed each time it was created; try again")

    def publish(self, temporary: str, path: str, *, create: bool) -> None:
        """Give a file its name; with ``create``, only if nobody has it."""
        if not create:
            self.files.rename(temporary, path)
            return
        try:
            self.files.link(temporary, path)
        except FileExistsError as error:
            self.sync_names([path])  # who is told that the object exists may build on it: it must not vanish again
            raise ObjectExists(f"{path}: already exists") from error
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise ConfigurationError(
                f"{path}: this filesystem has no hard links, which exclusive commits need; keep the run on another "
                "filesystem or in an object store"
            ) from error

    def sync_names(self, paths: Iterable[str]) -> None:
        """Make every name durable, from the root's down to the files'.

        Only after the files have their names: from then on their directories are not empty, so none can be removed.
        """
        for directory in self._directories(paths):
            self.files.sync_directory(directory)
        if not self._root_is_durable:
            self._sync_above_root()
            self._root_is_durable = True

    def discard(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self.files.unlink(path)

    def _directories(self, paths: Iterable[str]) -> Iterable[str]:
        """Those that the files lie in, up to the root, each once and before the one above it."""
        found: set[str] = set()
        for path in paths:
            directory = path
            while directory != self._root and (directory := os.path.dirname(directory)) not in found:
                found.add(directory)
        return sorted(found, key=len, reverse=True)

    def _sync_above_root(self) -> None:
        directory = self._root
        while (parent := os.path.dirname(directory)) != directory:
            with suppress(OSError):  # a directory we may pass through but not open was not made by us
                self.files.sync_directory(parent)
            directory = parent

    def _make_directory(self, path: str) -> None:
        with suppress(FileExistsError):
            try:
                self.files.mkdir(path)
            except FileNotFoundError:
                self._make_directory(os.path.dirname(path))
                self.files.mkdir(path)
