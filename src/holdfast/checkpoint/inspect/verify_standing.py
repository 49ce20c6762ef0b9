"""Whether checkpoints agree with those they depend on: these exist, have the same tables, and lost the rows they claim.

A restore trusts a grid's segments, because not reading replaced records is the point. Verification reads all ids and
compares every record with the checkpoints that came after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.grid.bundles import replacing_in
from holdfast.checkpoint.grid.split import known_labels
from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.read.key_frame import KeyTable, key_chunks
from holdfast.codec import Baseline, Difference
from holdfast.codec.chunk import codecs_of
from holdfast.errors import CheckpointNotFound, DamagedData
from holdfast.format.catalog import Entry
from holdfast.format.manifest import ALIVE, EXACT, BundleRef, Manifest, RowsChunk
from holdfast.format.rows import id_bytes
from holdfast.types import TableSpec

Ids = NDArray[np.int64]
Known = Mapping[str, Manifests]  # the parts of checkpoints that could be read, by id


def check_replaced(fetcher: Fetcher, head: Head, tip: Entry, known: Known) -> None:
    """Raise DamagedData if a record below a checkpoint was not replaced by the one that is said to have replaced it."""
    try:
        entries = lineage(head, tip.info.id)
    except CheckpointNotFound:
        return  # told already
    if all(entry.info.id in known for entry in entries):
        for name in {table.spec.name for part in known[tip.info.id] for table in part.tables}:
            _Replacements(fetcher, [entry.info.id for entry in entries], known, name).check()


def tips(head: Head) -> list[Entry]:
    """The checkpoints that no other depends on: every checkpoint is one of them or below one."""
    bases = {entry.info.base for entry in head.entries}
    return [entry for entry in head.entries if entry.info.id not in bases]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """A table as it was last saved whole."""

    spec: TableSpec
    baseline: Baseline


_Tables = Mapping[str, _Whole]  # by name


class Standing:
    """What the tables of each checkpoint depend on."""

    def __init__(self, fetcher: Fetcher, head: Head, known: Known) -> None:
        self._fetcher = fetcher
        self._head = head
        self._known = known
        self._tables: dict[str | None, _Tables | None] = {None: {}}  # by checkpoint; None: not all below is known

    def check(self, entry: Entry) -> None:
        """Raise DamagedData if a checkpoint disagrees with what it depends on."""
        self._check(entry, self._at(entry.info.base))

    def check_priority(self) -> None:
        """The same for priority saves, each of which depends on the head and on those before it."""
        tables = self._at(self._head.catalog.head)
        for entry in self._head.catalog.priority:
            if entry.info.base != self._head.catalog.head:
                raise DamagedData(
                    self._head.ref.name, f"has a priority save, {entry.info.id}, that does not build on its head"
                )
            self._check(entry, tables)
            tables = self._after(tables, entry)

    def _at(self, checkpoint: str | None) -> _Tables | None:
        """The tables as of a checkpoint."""
        if checkpoint not in self._tables:
            try:
                entries = lineage(self._head, str(checkpoint))
            except CheckpointNotFound as error:
                raise DamagedData(self._head.ref.name, str(error)) from error
            for entry in entries:
                if entry.info.id not in self._tables:
                    self._tables[entry.info.id] = self._after(self._tables[entry.info.base], entry)
        return self._tables[checkpoint]

    def _after(self, tables: _Tables | None, entry: Entry) -> _Tables | None:
        parts = self._known.get(entry.info.id)
        if tables is None or parts is None:
            return None
        saved = {
            name: _whole(self._fetcher, entry.info.id, shares)
            for name, shares in _shares(parts).items()
            if all(part.tables[at].whole for part, at in shares)
        }
        return {**tables, **saved}

    def _check(self, entry: Entry, below: _Tables | None) -> None:
        parts = self._known.get(entry.info.id)
        if below is None or parts is None:
            return  # told already
        for name, shares in _shares(parts).items():
            tables = [part.tables[at] for part, at in shares]
            if all(table.whole for table in tables):
                continue
            whole = below.get(name)
            if whole is None or whole.spec != tables[0].spec:
                raise DamagedData(
                    entry.part_list.name, f"has rows of table {name} in a shape that no checkpoint below it holds"
                )
            for table in tables:
                _check_differences(entry, name, table.chunks, whole)


def _check_differences(entry: Entry, table: str, chunks: Sequence[RowsChunk], whole: _Whole) -> None:
    for text in {chunk.codec for chunk in chunks if chunk.codec != EXACT}:
        for codec in (codecs_of(text) or {}).values():
            if isinstance(codec, Difference) and codec.baseline != whole.baseline:
                raise DamagedData(entry.part_list.name, f"has rows of table {table} that differ from another baseline")


_Share = tuple[Manifest, int]  # a part, and the number of a table in it


def _shares(parts: Manifests) -> dict[str, list[_Share]]:
    found: dict[str, list[_Share]] = {}
    for part in parts:
        for at, table in enumerate(part.tables):
            found.setdefault(table.spec.name, []).append((part, at))
    return found


def _whole(fetcher: Fetcher, checkpoint: str, shares: Sequence[_Share]) -> _Whole:
    chunks = [chunk for part, at in shares for chunk in key_chunks(fetcher, part, part.tables[at])]
    spec = shares[0][0].tables[shares[0][1]].spec
    return _Whole(spec=spec, baseline=KeyTable(checkpoint, chunks).baseline)


class _Replacements:
    """The records of one table in the checkpoints of a lineage, baseline first."""

    def __init__(self, fetcher: Fetcher, checkpoints: Sequence[str], known: Known, table: str) -> None:
        self._fetcher = fetcher
        self._checkpoints = checkpoints
        self._known = known
        self._table = table

    def check(self) -> None:
        """From the newest down: of each record, the next checkpoint that has its row is the one that replaced it."""
        writer: Ids | None = None  # of each row: the oldest checkpoint above the current one that has it
        for number in range(len(self._checkpoints) - 1, -1, -1):
            shares = _shares(self._known[self._checkpoints[number]]).get(self._table, [])
            if shares and all(part.tables[at].whole for part, at in shares):
                return  # nothing below is needed
            for part, at in shares:
                if writer is None:
                    writer = np.full(part.tables[at].spec.rows, len(self._checkpoints), dtype=np.int64)
                self._check_part(writer, number, part, at)

    def _check_part(self, writer: Ids, number: int, part: Manifest, at: int) -> None:
        arranged = replacing_in(part, self._checkpoints[number + 1 :])
        for chunk in part.tables[at].chunks:
            bundle = part.bundles[chunk.place.bundle]
            ids = self._ids(bundle, chunk)
            if (writer[ids] == number).any():
                raise DamagedData(bundle.name, f"holds a row of table {self._table} that another chunk also holds")
            labels, replaced = known_labels(chunk, arranged), writer[ids] - number - 1
            living = labels == ALIVE
            is_wrong = (replaced[living] < min(chunk.through, arranged)).any()
            if is_wrong or not np.array_equal(replaced[~living], labels[~living]):
                raise DamagedData(
                    self._checkpoints[number], f"has rows of table {self._table} in the segment of another checkpoint"
                )
            writer[ids] = number

    def _ids(self, bundle: BundleRef, chunk: RowsChunk) -> Ids:
        length = chunk.rows * id_bytes(chunk.ids)
        data = self._fetcher.chunk(bundle, chunk.place, 0, length) if length else memoryview(b"")
        return checked_ids(chunk, data, name=bundle.name)
