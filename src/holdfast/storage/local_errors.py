"""What a filesystem's errors mean."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import (
    AccessDenied,
    ConfigurationError,
    HoldfastError,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
    UnreadableData,
)

_MEANINGS: dict[int, tuple[type[HoldfastError], str]] = {
    errno.ENOENT: (StorageUnavailable, "was removed by another process while being written; try again"),
    errno.EIO: (StorageUnavailable, "the disk reported an error; check the system log"),
    errno.ENOSPC: (StorageFull, "the disk is full; free some space or prune old checkpoints"),
    errno.EDQUOT: (StorageFull, "the disk quota is used up; free some space or ask for more"),
    errno.EFBIG: (StorageFull, "the file would exceed the size limit of the filesystem or the process"),
    errno.EACCES: (AccessDenied, "permission denied; check the owner and mode of the directory"),
    errno.EPERM: (AccessDenied, "operation not permitted; check the owner, mode and attributes of the directory"),
    errno.EROFS: (AccessDenied, "the filesystem is mounted read-only"),
    errno.EXDEV: (ConfigurationError, "a directory of the run is on another filesystem; keep the whole run on one"),
    errno.EISDIR: (ConfigurationError, "is a directory of other objects; on a disk no object can have the same name"),
    errno.ENOTDIR: (ConfigurationError, "is below another object; on a disk an object cannot also be a directory"),
    errno.ENAMETOOLONG: (ConfigurationError, "the path is too long for this filesystem; use a shorter directory"),
}
_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # of a read: this file's bytes, or what leads to them, are bad
_PASSING = (errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def read_error(name: str, path: str, error: OSError) -> HoldfastError:
    """What an error of reading the object ``name`` means: it may be missing, or lost to the disk, in several ways."""
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return ObjectNotFound(f"{path}: no such object")
    if error.errno in _UNREADABLE:
        return UnreadableData(name, f"the disk cannot read {path} ({error.strerror}); check the system log")
    return _meaning(path, error)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn an OSError into one of ours that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        raise _meaning(path, error) from error


def _meaning(path: str, error: OSError) -> HoldfastError:
    kind, meaning = _MEANINGS.get(error.errno or 0, (StorageError, str(error.strerror or error)))
    if error.errno in _PASSING:
        kind = StorageUnavailable
    return kind(f"{path}: {meaning}")
