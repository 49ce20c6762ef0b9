"""How the tables of a snapshot are stored: worked out once, and again when a table or its precision changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.checkpoint.snapshot.table_codecs import TableCodecs
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.codec import Codec
from holdfast.types import ColumnSpec, Stored, TableSpec


class TablePartKey(NamedTuple):
    """Everything that decides it."""

    spec: TableSpec
    stored: Stored
    start: int
    stop: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A table's columns, the codecs known here, and what the agent is told. Same inputs, same objects."""

    columns: tuple[ColumnSpec, ...]
    codecs: Mapping[str, Codec]
    told: TableSlice


class TableParts:
    """That of each table's last snapshot, which is nearly always that of the next: saves must be short."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, bool], tuple[TablePartKey, TablePart]] = {}  # by table, and whether it is whole

    def of(self, index: int, key: TablePartKey) -> TablePart:
        """The part of table number ``index``."""
        last = self._last.get((index, key.whole))
        if last is not None and last[0] == key:
            return last[1]
        codecs = TableCodecs.of(key.spec, key.stored)
        part = TablePart(
            columns=key.spec.columns,
            codecs=codecs.known_here(whole=key.whole),
            told=codecs.slice(key.start, key.stop, whole=key.whole),
        )
        self._last[index, key.whole] = (key, part)
        return part
