"""Which rows of a table a snapshot copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from holdfast.codec.base import Codec
from holdfast.codec.quantized import Quantized
from holdfast.types import ColumnSpec


class Listing(Protocol):
    """Rows on a device that nobody has listed yet."""

    @property
    def most(self) -> int:
        """No more than so many. Never waits."""
        ...

    def now(self) -> Any:
        """Their ids; waits for the device."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeviceDifference:
    """How weights on a device are stored as differences, made there: the codec, and what they are taken from."""

    codec: Quantized
    base: Any  # see ``kernels.quantize.baseline``


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """What to copy of one table: its columns, live tensors or arrays, and the rows, by ids or as a range."""

    index: int
    columns: tuple[ColumnSpec, ...]
    tensors: tuple[Any, ...]
    start: int
    stop: int
    ids: Any | None  # rows of the tensors, sorted, where these are; None: every row from start to stop
    origin: int = 0  # the table's row that the tensors begin with, where they are not the whole table
    codecs: Mapping[str, Codec] = field(default_factory=dict)  # of the columns that may be copied as records
    unlisted: Listing | None = None  # in place of ids: rows that nobody knows the number of
    difference: DeviceDifference | None = None  # of the first column, the weights

    @property
    def most_rows(self) -> int:
        """No more rows than this."""
        return self.rows if self.unlisted is None else self.unlisted.most

    def listed(self) -> TableCopy:
        """The same with ids; waits for the device where they are not known yet."""
        return self if self.unlisted is None else replace(self, ids=self.unlisted.now(), unlisted=None)

    @property
    def rows(self) -> int:
        """The number of rows, which must be listed."""
        return self.stop - self.start if self.ids is None else int(self.ids.shape[0])  # len() of a tensor takes longer

    @property
    def range(self) -> slice:
        """Where contiguous rows are in the tensors."""
        return slice(self.start - self.origin, self.stop - self.origin)

    def part(self, start: int, stop: int) -> TableCopy:
        """Some of the rows, by their numbers among these."""
        if self.ids is None:
            return replace(self, start=self.start + start, stop=self.start + stop)
        return replace(self, ids=self.ids[start:stop])

    def bounds(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The first and the last row, by its number in the table, of each span; asks a device once for all of them."""
        ends = [(start, stop - 1) for start, stop in spans]
        if self.ids is None:
            return [(self.start + start, self.start + last) for start, last in ends]
        numbers = [number for span in ends for number in span]
        if getattr(self.ids, "is_cuda", False):
            found = self.ids[numbers].tolist()
        else:
            found = [int(self.ids[number]) for number in numbers]
        return [(self.origin + first, self.origin + last) for first, last in zip(found[::2], found[1::2], strict=True)]
