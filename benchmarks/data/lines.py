"""Lines of a text file from a place that can be named and found again."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from holdfast.errors import ReaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The lines of a file that start in bytes ``[start, stop)``; all of a gzip file, which cannot be entered midway."""

    path: Path
    start: int
    stop: int

    def open(self, position: int | None = None) -> Lines:
        """Read on from what ``Lines.position`` was, or from the span's first line."""
        if is_gzip(self.path):
            return GzipLines(self.path, position or 0)
        return PlainLines(self.path, self.start if position is None else position, self.stop)


def spans_of(paths: Sequence[Path], span_bytes: int) -> list[Span]:
    """Cut files into parts that several workers can read."""
    spans = []
    for path in paths:
        size = path.stat().st_size
        step = max(size, 1) if is_gzip(path) else span_bytes
        spans += [Span(path=path, start=start, stop=min(start + step, size)) for start in range(0, size, step)]
    return spans


def is_gzip(path: Path) -> bool:
    return path.suffix == ".gz"


class Lines(Protocol):
    """An open span. ``position`` is the place of the next line."""

    position: int

    def take(self, count: int) -> list[bytes]:
        """The next lines, with their line ends; fewer, and at last none, at the span's end."""
        ...

    def number_at(self, position: int) -> int:
        """The number in the file, from 1, of the line at ``position``."""
        ...

    def close(self) -> None: ...


class PlainLines:
    """Positions are byte offsets. ``start`` may lie within a line, which then belongs to the span before."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._path = path
        self._stop = stop
        self._file = path.open("rb", buffering=1 << 20)
        if start > 0:
            self._file.seek(start - 1)
            self._file.readline()
        self.position = self._file.tell()

    def take(self, count: int) -> list[bytes]:
        lines: list[bytes] = []
        while len(lines) < count and self.position < self._stop and (line := self._file.readline()):
            lines.append(line)
            self.position += len(line)
        return lines

    def number_at(self, position: int) -> int:
        before = PlainLines(self._path, 0, position)
        with closing(before):
            return 1 + sum(len(lines) for lines in iter(lambda: before.take(1 << 16), []))

    def close(self) -> None:
        self._file.close()


class GzipLines:
    """Positions are line counts: a gzip file is read from its beginning."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._file = gzip.open(path, "rb")  # noqa: SIM115 - closed by close()
        self.position = 0
        while self.position < start and self.take(min(start - self.position, 1 << 16)):
            pass

    def take(self, count: int) -> list[bytes]:
        try:
            lines = list(islice(self._file, count))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ReaderError(f"{self._path} cannot be decompressed after line {self.position}: {error}") from error
        self.position += len(lines)
        return lines

    def number_at(self, position: int) -> int:
        return position + 1

    def close(self) -> None:
        self._file.close()
