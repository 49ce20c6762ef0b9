"""The real Criteo files as batches: Kaggle's ``train.txt`` and Terabyte's ``day_N``, plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from benchmarks.data.lines import Lines, Span, spans_of
from benchmarks.data.parse import MalformedLine, parse_lines
from benchmarks.data.schema import Batch
from benchmarks.data.shard import Shard
from holdfast.errors import ReaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The next line to read: a span by its number, and a position in it (None: its first line)."""

    span: int
    position: int | None


class CriteoDataset(IterableDataset[Batch]):
    """Every line of the files once, in batches of ``batch_size``; the last batch of each worker may be shorter.

    For ``StatefulDataLoader(dataset, batch_size=None)``. Plain files are cut into spans of ``span_bytes`` that the
    workers take in turn; a gzip file is one span. State is the place after the last batch handed out: a byte offset
    in a plain file; a line count in a gzip file, which going on must decompress from its beginning.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        cardinalities: Sequence[int],
        batch_size: int,
        span_bytes: int = 64 << 20,
    ) -> None:
        if batch_size < 1 or span_bytes < 1:
            raise ValueError(f"batch_size is {batch_size} and span_bytes {span_bytes}: take at least 1")
        self._spans = spans_of([Path(path) for path in paths], span_bytes)
        self._signature = _signature(self._spans, span_bytes)
        self._cardinalities = tuple(cardinalities)
        self._batch_size = batch_size
        self._next = Place(span=0, position=None)
        self._loaded: Place | None = None

    def __iter__(self) -> Iterator[Batch]:
        # Not a generator: the loaded place is used up by this call, not by the first next(), which may never come.
        shard = Shard.of_this_process()
        self._next = self._loaded or Place(span=shard.index, position=None)
        self._loaded = None
        return self._batches(shard)

    def _batches(self, shard: Shard) -> Iterator[Batch]:
        pieces: list[Batch] = []  # of one batch: it may begin in one span and end in another
        missing = self._batch_size
        start = self._next
        for number in range(start.span, len(self._spans), shard.count):
            span = self._spans[number]
            with closing(span.open(start.position if number == start.span else None)) as lines:
                while (piece := self._read(span, lines, missing)) is not None:
                    pieces.append(piece)
                    missing -= len(piece.labels)
                    if not missing:
                        self._next = Place(span=number, position=lines.position)
                        yield _join(pieces)
                        pieces, missing = [], self._batch_size
        if pieces:
            self._next = Place(span=len(self._spans), position=None)
            yield _join(pieces)

    def _read(self, span: Span, lines: Lines, count: int) -> Batch | None:
        first = lines.position
        taken = lines.take(count)
        if not taken:
            return None
        try:
            return parse_lines(taken, self._cardinalities)
        except MalformedLine as bad:
            raise ValueError(f"{span.path}, line {lines.number_at(first) + bad.row}: {bad.why}") from bad

    def state_dict(self) -> dict[str, Any]:
        """Where to go on."""
        return {
            "span": self._next.span,
            "position": self._next.position,
            "files": self._signature,
            "shards": Shard.of_this_process().count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter`` goes on there; the one after it starts from the beginning."""
        Shard.of_this_process().check(state)
        if state["files"] != self._signature:
            raise ReaderError(
                f"the reader's state was taken over {state['files']} and is loaded into {self._signature}: "
                f"pass the same files in the same order, and the same span_bytes"
            )
        self._loaded = self._next = Place(span=state["span"], position=state["position"])


def _join(pieces: list[Batch]) -> Batch:
    return pieces[0] if len(pieces) == 1 else Batch(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def _signature(spans: Sequence[Span], span_bytes: int) -> str:
    """What must be the same for a place to mean the same: the files' names and sizes, and where they are cut."""
    sizes = {span.path.name: span.stop for span in spans}
    files = ", ".join(f"{name} of {size} bytes" for name, size in sizes.items())
    return f"{files} in spans of {span_bytes}"
