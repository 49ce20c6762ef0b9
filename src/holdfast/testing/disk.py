"""A disk that loses whatever was not synced."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import RLock
from typing import TypeAlias

from holdfast.storage.files import FileInfo, Listed
from holdfast.testing.power import PowerCut


@dataclass(slots=True, eq=False)
class _File:
    content: bytes = b""
    durable: bytes = b""
    modified_s: float = 0.0

    def settle(self, survives: Callable[[], bool]) -> None:
        if self.content != self.durable and not survives():
            self.content = self.durable
        self.durable = self.content

    def twin(self, twins: _Twins) -> _File:
        """A copy, the same one for every name and handle that lead here."""
        if id(self) not in twins.files:
            twins.files[id(self)] = _File(content=self.content, durable=self.durable, modified_s=self.modified_s)
        return twins.files[id(self)]


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)

    def settle(self, survives: Callable[[], bool]) -> None:
        for name in sorted({*self.names, *self.durable}):
            before, now = self.durable.get(name), self.names.get(name)
            if before is now or survives():
                continue
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before
        self.durable = dict(self.names)
        for _, node in sorted(self.names.items()):
            node.settle(survives)

    def twin(self, twins: _Twins) -> _Directory:
        """A copy, the same one whether it is found in memory or on the disk."""
        if id(self) not in twins.directories:
            copy = twins.directories[id(self)] = _Directory()
            copy.names = {name: node.twin(twins) for name, node in self.names.items()}
            copy.durable = {name: node.twin(twins) for name, node in self.durable.items()}
        return twins.directories[id(self)]


@dataclass(slots=True)
class _Twins:
    files: dict[int, _File] = field(default_factory=dict)
    directories: dict[int, _Directory] = field(default_factory=dict)


_Node: TypeAlias = _File | _Directory


class SimulatedDisk:
    """A FileSystem in memory whose power can be cut before any operation.

    A file's bytes are durable once the file was synced, a directory's names once the directory was. Every call is one
    operation; the first has number 1. Nothing depends on time or chance unless a ``Random`` is passed.
    """

    def __init__(self) -> None:
        self.now_s = 0.0  # the disk's clock; tests move it
        self.capacity_bytes: int | None = None  # of all files together; None: any
        self.history: list[str] = []
        self._root = _Directory()
        self._open: dict[int, _File] = {}
        self._handles = 0
        self._cut_at = 0
        self._tear = False
        self._is_off = False
        self._lock = RLock()

    @property
    def operations(self) -> int:
        """How many operations there have been."""
        return len(self.history)

    def crash_at(self, operation: int, *, tear: bool = False) -> None:
        """Cut the power before that operation; with ``tear``, in the middle of it if it writes or syncs a file."""
        self._cut_at, self._tear = operation, tear

    def reboot(self, *, lose_unsynced: bool = True, chance: Random | None = None) -> None:
        """Turn the power on again, off now or not; what was not synced is lost or kept, or each thing by ``chance``."""
        self._root.settle((lambda: chance.random() < 0.5) if chance else (lambda: not lose_unsynced))
        self._open.clear()
        self._cut_at, self._is_off = 0, False

    def copy(self) -> SimulatedDisk:
        """Another disk in the same state, with the same files open; from here they go separate ways."""
        with self._lock:
            twins = _Twins()
            other = SimulatedDisk()
            other.now_s, other._handles, other._is_off = self.now_s, self._handles, self._is_off
            other.capacity_bytes = self.capacity_bytes
            other._root = self._root.twin(twins)
            other._open = {handle: file.twin(twins) for handle, file in self._open.items()}
            return other

    @property
    def used_bytes(self) -> int:
        """What files that have a name take, and those that are open. Not an operation."""
        with self._lock:
            named = (node for node in _nodes(self._root) if isinstance(node, _File))
            return sum(
                len(file.content) for file in {id(file): file for file in (*named, *self._open.values())}.values()
            )

    def contents(self) -> dict[str, bytes | None]:
        """What a reader finds now: every file's bytes by path, None for a directory. Not an operation."""
        with self._lock:
            return dict(_walk("", self._root))

    def create(self, path: str) -> int:
        with self._operation("create", path):
            directory, name = self._parent(path)
            if name in directory.names:
                raise _error(errno.EEXIST, path)
            file = directory.names[name] = _File(modified_s=self.now_s)
            self._handles += 1
            self._open[self._handles] = file
            return self._handles

    def write(self, handle: int, views: Sequence[memoryview], start: int = 0) -> None:
        with self._operation("write", str(handle)) as torn:
            file, data = self._open[handle], b"".join(views)
            if self.capacity_bytes is not None and self.used_bytes + len(data) > self.capacity_bytes:
                raise _error(errno.ENOSPC, str(handle))
            data = data[: len(data) // 2] if torn else data
            file.content = file.content[:start].ljust(start, b"\0") + data + file.content[start + len(data) :]
            file.modified_s = self.now_s

    def sync(self, handle: int) -> None:
        with self._operation("sync", str(handle)) as torn:
            file = self._open[handle]
            file.durable = file.content[: len(file.content) // 2] if torn else file.content

    def close(self, handle: int) -> None:
        with self._operation("close", str(handle)):
            del self._open[handle]

    def link(self, source: str, target: str) -> None:
        with self._operation("link", target):
            file = self._file(source)
            directory, name = self._parent(target)
            if name in directory.names:
                raise _error(errno.EEXIST, target)
            directory.names[name] = file

    def rename(self, source: str, target: str) -> None:
        with self._operation("rename", target):
            file = self._file(source)
            directory, name = self._parent(target)
            if isinstance(directory.names.get(name), _Directory):
                raise _error(errno.EISDIR, target)
            directory.names[name] = file
            self._remove(source)

    def unlink(self, path: str) -> None:
        with self._operation("unlink", path):
            self._file(path)
            self._remove(path)

    def mkdir(self, path: str) -> None:
        with self._operation("mkdir", path):
            directory, name = self._parent(path)
            if name in directory.names:
                raise _error(errno.EEXIST, path)
            directory.names[name] = _Directory()

    def rmdir(self, path: str) -> None:
        with self._operation("rmdir", path):
            if self._directory(path).names:
                raise _error(errno.ENOTEMPTY, path)
            self._remove(path)

    def sync_directory(self, path: str) -> None:
        with self._operation("sync_directory", path):
            directory = self._directory(path)
            directory.durable = dict(directory.names)

    def read(self, path: str, start: int, stop: int | None, into: memoryview | None = None) -> bytes:
        with self._operation("read", path):
            return self._file(path).content[start:stop]

    def forget(self, path: str) -> None:
        with self._operation("forget", path):
            self._file(path)

    def stat(self, path: str) -> FileInfo:
        with self._operation("stat", path):
            file = self._file(path)
            return FileInfo(size_bytes=len(file.content), modified_s=file.modified_s)

    def scan(self, path: str) -> Iterable[Listed]:
        with self._operation("scan", path):
            names = self._directory(path).names
            return [Listed(name=name, is_directory=isinstance(node, _Directory)) for name, node in names.items()]

    @contextmanager
    def _operation(self, kind: str, subject: str) -> Iterator[bool]:
        """Do one operation, unless the power is off or goes off now; returns whether only half of it gets done."""
        with self._lock:
            if self._is_off:
                raise PowerCut(f"the disk has no power: {kind} {subject}")
            self.history.append(f"{kind} {subject}")
            self._is_off = self.operations == self._cut_at
            torn = self._is_off and self._tear and kind in ("write", "sync")
            if not self._is_off or torn:
                yield torn
            if self._is_off:
                raise PowerCut(f"at operation {self.operations}: {kind} {subject}")

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for segment in path.split("/"):
            if not segment:
                continue
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            if segment not in node.names:
                raise _error(errno.ENOENT, path)
            node = node.names[segment]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise _error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, _, name = path.rpartition("/")
        return self._directory(head), name

    def _remove(self, path: str) -> None:
        directory, name = self._parent(path)
        del directory.names[name]


def _walk(path: str, directory: _Directory) -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted(directory.names.items()):
        if isinstance(node, _File):
            yield f"{path}/{name}", node.content
        else:
            yield f"{path}/{name}", None
            yield from _walk(f"{path}/{name}", node)


def _nodes(directory: _Directory) -> Iterator[_Node]:
    for node in directory.names.values():
        yield node
        if isinstance(node, _Directory):
            yield from _nodes(node)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
