"""How much of the tables changed, in bytes needed to store it: what a strategy weighs against a baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.codec import Codec
from holdfast.codec.chunk import Codecs, codecs_text, record_bytes
from holdfast.format.layout import row_bytes
from holdfast.types import TableSpec

_ID_BYTES = 4  # of a row in a delta, at most, where a table has fewer than 2^32 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """Rows of a table that changed, of all that this rank stores."""

    rows: int
    since_last: int  # checkpoint
    since_baseline: int
    baseline_row_bytes: int
    delta_row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBytes:
    """What changed of a writer's rows, in the bytes that it takes in storage."""

    baseline: int  # what all rows take in a baseline
    increment: int  # since the last checkpoint
    above_baseline: int

    @classmethod
    def of(cls, tables: Iterable[ChangedRows]) -> ChangedBytes:
        """The bytes over all tables."""
        tables = tuple(tables)
        return cls(
            baseline=sum(each.rows * each.baseline_row_bytes for each in tables),
            increment=sum(each.since_last * each.delta_row_bytes for each in tables),
            above_baseline=sum(each.since_baseline * each.delta_row_bytes for each in tables),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedShares:
    """What changed, as shares of a baseline's bytes."""

    increment: float  # since the last checkpoint
    above_baseline: float

    @classmethod
    def of(cls, tables: Iterable[ChangedRows]) -> ChangedShares:
        """The shares over all tables."""
        return cls.joined([ChangedBytes.of(tables)])

    @classmethod
    def joined(cls, writers: Iterable[ChangedBytes]) -> ChangedShares:
        """The shares over all writers."""
        writers = tuple(writers)
        baseline = max(1, sum(each.baseline for each in writers))
        return cls(
            increment=sum(each.increment for each in writers) / baseline,
            above_baseline=sum(each.above_baseline for each in writers) / baseline,
        )


def baseline_row_bytes(spec: TableSpec, codecs: Codecs) -> int:
    """The bytes of a row in a baseline."""
    return record_bytes(spec.columns, codecs_text(codecs)) if codecs else row_bytes(spec.columns)


def delta_row_bytes(spec: TableSpec, codecs: Codecs, difference: Codec | None) -> int:
    """What a row takes in a delta, its weights as a difference where there is a codec for it."""
    if difference is not None:
        codecs = {**codecs, spec.weight.name: difference}
    return baseline_row_bytes(spec, codecs) + _ID_BYTES
