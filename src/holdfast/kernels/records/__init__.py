"""Row records: the weights and all slots of a row as one run of words, out of a shard's arrays and back into them.

A shard keeps weights and slots in arrays of their own. What leaves it as one piece, for parities or another server, is
the bit pattern of both: the weights first, then the slots in the order of the rule. No torch: servers run without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError
from holdfast.kernels.parts import in_shares
from holdfast.kernels.plain import on_lines, plain, rows_inside
from holdfast.kernels.records.reference import Columns, Ids, Words
from holdfast.kernels.runs import Runs, runs_inside
from holdfast.types import UpdateRule

__all__ = ["RowRecords", "Words", "warm_up", "words_of"]

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.integer[Any]]

_NO_COLUMN = np.empty((0, 0), np.uint32)


def words_of(rule: UpdateRule, width: int) -> int:
    """How many words the record of a row has.

    Args:
        rule: Whose slots it holds.
        width: How many weights the row has.
    """
    return width + sum(1 if slot.single else width for slot in rule.slots)


class RowRecords:
    """The rows of one shard, as records.

    Args:
        rule: Whose slots they hold.
        weights: ``[rows, width]``, float32.
        slots: The rule's, by name: ``[rows, width]`` or ``[rows]``.
    """

    def __init__(self, rule: UpdateRule, weights: Floats, slots: Mapping[str, Floats]) -> None:
        found = [weights, *(slots[slot.name] for slot in rule.slots)]
        for column in found:
            if column.dtype != np.float32 or len(column) != len(weights) or not column.flags.c_contiguous:
                raise ConfigurationError(f"columns of records must be C-contiguous float32, got {column.dtype}")
        columns = [column.reshape(len(weights), -1 if column.size else column.shape[-1]) for column in found]
        words = [column.view(np.uint32) for column in columns]
        self._columns = cast(Columns, (*words, *[_NO_COLUMN] * (4 - len(words))))
        self._rows = len(weights)
        self.words = words_of(rule, weights.shape[1])

    def read(self, rows: Integers) -> Words:
        """Copies of some records, ``[rows, words]``. A row outside the shard raises ConfigurationError."""
        known = rows_inside(rows, self._rows, "a shard")
        records = np.empty((len(known), self.words), np.uint32)
        _kernels().gather(self._columns, known, records)
        return records

    def write(self, rows: Integers, records: Words) -> None:
        """Take records, one for each row. A row outside the shard changes nothing and raises ConfigurationError."""
        known = rows_inside(rows, self._rows, "a shard")
        self._require(records, len(known))
        _kernels().put(self._columns, known, plain(records))

    def read_runs(self, runs: Runs, *, threads: int = 1) -> Words:
        """Copies of the records of some runs. A run outside the shard raises ConfigurationError."""
        known = runs_inside(runs, self._rows, "a shard")
        records = on_lines((known.size, self.words), np.uint32)
        kernels = _kernels()

        def gather(share: Runs, at: slice) -> None:
            kernels.gather_runs(self._columns, share, records[at])

        in_shares(known, gather, row_bytes=4 * self.words, threads=threads)
        return records

    def write_runs(self, runs: Runs, records: Words, *, threads: int = 1) -> None:
        """Take records of some runs. A run outside the shard changes nothing and raises ConfigurationError.

        With several threads, no run may meet another.
        """
        known = runs_inside(runs, self._rows, "a shard")
        self._require(records, known.size)
        kernels, given = _kernels(), plain(records)

        def put(share: Runs, at: slice) -> None:
            kernels.put_runs(self._columns, share, given[at])

        in_shares(known, put, row_bytes=4 * self.words, threads=threads)

    def _require(self, records: Words, count: int) -> None:
        if records.dtype != np.uint32 or records.shape != (count, self.words):
            found = f"{records.dtype} of shape {records.shape}"
            raise ConfigurationError(f"records of {count} rows must be uint32 of {self.words} words, got {found}")


def warm_up() -> None:
    """Compile or load now what records need, so that no message waits for it."""
    _kernels()


class _Kernels(Protocol):
    def gather(self, columns: Columns, rows: Ids, records: Words, /) -> None: ...
    def put(self, columns: Columns, rows: Ids, records: Words, /) -> None: ...
    def gather_runs(self, columns: Columns, runs: Runs, records: Words, /) -> None: ...
    def put_runs(self, columns: Columns, runs: Runs, records: Words, /) -> None: ...


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.records import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.records import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
