"""Objects in S3, Google Cloud Storage or Azure, through obstore."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError, ObjectNotFound
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage.base import Buffer, ObjectInfo
from holdfast.storage.buffers import as_views, check_complete, check_range, total_bytes
from holdfast.storage.names import check_name, check_prefix, is_name
from holdfast.storage.object_client import ANSWER_S, FORK_GUARD, connect
from holdfast.storage.object_errors import translated

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from holdfast.storage.object_client import Client

_PART_BYTES = 8 << 20
_MOST_PARTS = 10_000  # of one S3 multipart upload
_UPLOADS = 4
_PAGE = 1000
_TRANSFER_BYTES = 1 << 20  # more than this takes its time


class ObjectStore:
    """A Store in a bucket, under the URL's path.

    Only idempotent requests are retried here. An exclusive create is sent once: repeated after a lost response, it
    would find its own object and report that another writer was first. If it fails, compare what is there with what was
    written, as RetryingStore does. It is also sent in one request (S3 allows at most 5 GB that way); other puts go in
    parts.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._url = url
        self._runtime = runtime
        self._clients = connect(url, options or {}, answer_s)

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_remote(self) -> bool:
        """It is always asked over the network."""
        return True

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        check_name(name)
        views = as_views(data) or [memoryview(b"")]
        size_bytes = total_bytes(views)
        with self._explained(name):
            if create:
                self._clients.once.put(name, views, mode="create")
            elif size_bytes <= _PART_BYTES:
                self._client_for(size_bytes).put(name, views, use_multipart=False)
            else:
                part_bytes = max(_PART_BYTES, -(-size_bytes // _MOST_PARTS))
                self._clients.transfer.put(name, iter(views), chunk_size=part_bytes, max_concurrency=_UPLOADS)

    def get(self, name: str) -> Buffer:
        check_name(name)
        with self._explained(name):
            return memoryview(self._clients.repeated.get(name).bytes())

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        check_name(name)
        check_range(start, stop)
        with self._explained(name):
            if start == stop:  # cannot be asked for, but the object must be there and reach that far
                size_bytes = self._clients.repeated.head(name)["size"]
                return check_complete(name, b"", min(start, size_bytes), stop)
            content = memoryview(self._client_for(stop - start).get_range(name, start=start, end=stop))
        return check_complete(name, content, start, stop)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        check_prefix(after)
        return self._list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        doomed = [check_name(name) for name in names]
        try:
            with self._explained(f"{len(doomed)} objects"):
                self._clients.repeated.delete(doomed)
        except ObjectNotFound:  # from Google and Azure, for the first missing one: the others may still be there
            for name in doomed:
                self._delete_one(name)

    def now_s(self) -> float:
        name = f"clock+{self._runtime.token()}"  # not an object's name, so no listing shows it
        with self._explained(name):
            self._clients.repeated.put(name, b"", use_multipart=False)
            modified = self._clients.repeated.head(name)["last_modified"]
            self._clients.repeated.delete([name])
        return modified.timestamp()

    def _client_for(self, size_bytes: int) -> Client:
        return self._clients.transfer if size_bytes > _TRANSFER_BYTES else self._clients.repeated

    def _delete_one(self, name: str) -> None:
        try:
            with self._explained(name):
                self._clients.repeated.delete([name])
        except ObjectNotFound:
            pass

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        directory = prefix[: prefix.rfind("/") + 1]
        for meta in self._listed(directory, max(prefix, after)):
            name = meta["path"]
            if name > prefix and not name.startswith(prefix):
                return
            if name > after and name.startswith(prefix) and is_name(name):
                yield ObjectInfo(name=name, size_bytes=meta["size"], modified_s=meta["last_modified"].timestamp())

    def _listed(self, directory: str, start: str) -> Iterator[ObjectMeta]:
        """What lies in the directory from ``start`` on (a little before it, even), in name order.

        Some servers keep real directories and list a/x before a-b and a.b. Names that agree up to their first
        ``- . /`` stay together in that order too, so only they are held back and sorted.
        """

        def stem(meta: ObjectMeta) -> str:
            return _stem(meta["path"], directory)

        previous = ""
        for current, together in groupby(self._pages(directory, _offset(directory, start)), stem):
            if current < previous:
                raise ConfigurationError(f"{self.url}: this bucket does not list objects in order; use one that does")
            previous = current
            yield from sorted(together, key=lambda meta: meta["path"])

    def _pages(self, directory: str, offset: str | None) -> Iterator[ObjectMeta]:
        pages = self._clients.repeated.list(directory or None, offset=offset, chunk_size=_PAGE)
        while True:
            with self._explained(f"list of {directory!r}"):
                page = next(pages, None)
            if page is None:
                return
            yield from page

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        FORK_GUARD.check(self.url)
        try:
            yield
        except (BaseError, OSError) as error:
            raise translated(error, self.url, what) from error


def _stem(name: str, directory: str) -> str:
    return re.split(r"[-./]", name[len(directory) :], maxsplit=1)[0]


def _offset(directory: str, start: str) -> str | None:
    """Something that sorts before ``start`` and all that follows it, in name order and directory by directory."""
    shorter = _stem(start, directory)[:-1] if start.startswith(directory) else ""
    return directory + shorter if shorter else None
