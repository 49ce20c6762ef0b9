"""How the tables of a snapshot are stored: worked out once, and again when a table or its precision changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.checkpoint.snapshot.table_codecs import TableCodecs
from holdfast.checkpoint.snapshot.table_copy import DeviceDifference
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.codec import Codec
from holdfast.codec.quantized import Quantized
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.types import ColumnSpec, Stored, TableSpec


class TablePartKey(NamedTuple):
    """Everything that decides it."""

    spec: TableSpec
    stored: Stored
    start: int
    stop: int
    whole: bool
    made_from: str | None = None  # the checkpoint that weights come as differences from


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """A table's columns, the codecs known here, and what the agent is told. Same inputs, same objects."""

    columns: tuple[ColumnSpec, ...]
    codecs: Mapping[str, Codec]
    told: TableSlice
    baseline: Quantized | None  # of weights that are stored as differences later
    inner: Quantized | None  # of these differences
    difference: DeviceDifference | None  # how they are, if their device makes these


class TableParts:
    """That of each table's last snapshot, which is nearly always that of the next: saves must be short."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, bool], tuple[TablePartKey, TablePart]] = {}  # by table, and whether it is whole

    def of(self, index: int, key: TablePartKey, base: BaselineRows | None = None) -> TablePart:
        """The part of table number ``index``; ``base``: what its device makes differences from."""
        last = self._last.get((index, key.whole))
        if last is not None and last[0] == key and _base_of(last[1]) is base:
            return last[1]
        codecs = TableCodecs.of(key.spec, key.stored)
        part = TablePart(
            columns=key.spec.columns,
            codecs=codecs.known_here(whole=key.whole),
            told=codecs.slice(key.start, key.stop, whole=key.whole, made_from=key.made_from),
            baseline=codecs.baseline,
            inner=codecs.difference if isinstance(codecs.difference, Quantized) else None,
            difference=_difference(codecs, base),
        )
        self._last[index, key.whole] = (key, part)
        return part


def _difference(codecs: TableCodecs, base: BaselineRows | None) -> DeviceDifference | None:
    if base is None:
        return None
    assert isinstance(codecs.difference, Quantized)
    return DeviceDifference(codecs.difference, base)


def _base_of(part: TablePart) -> BaselineRows | None:
    return None if part.difference is None else part.difference.base
