"""Criteo's lines to tensors, all lines and fields at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.data.schema import DENSE_FIELDS, Batch

TAB, NEWLINE, MINUS = b"\t\n-"
LONGEST_NUMBER = 15  # digits; sixteen times as many values still fit in 64 bits
NO_DIGIT = 255


class MalformedLine(ValueError):
    """A line that is not label, 13 integers and the categories. ``row`` counts from the first line parsed."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"line {row + 1}: {why}")
        self.row = row
        self.why = why


def parse_lines(lines: Sequence[bytes], cardinalities: Sequence[int]) -> Batch:
    """Lines with their line ends (the last may lack it). A blank integer or category reads as 0.

    Integers become log(1 + x), negative ones 0, as DLRM takes them; categories are taken modulo their cardinality.
    """
    text = np.frombuffer(b"".join(lines) + (b"" if lines[-1].endswith(b"\n") else b"\n"), np.uint8)
    starts, lengths = _split(text, lines, fields=1 + DENSE_FIELDS + len(cardinalities))
    fields = _Fields(text, starts, lengths)
    labels = fields.numbers(slice(0, 1), base=10, kind="label: 0 or 1", allowed=2)[:, 0]
    integers = fields.integers(slice(1, 1 + DENSE_FIELDS))
    categories = fields.numbers(slice(1 + DENSE_FIELDS, None), base=16, kind="hexadecimal number")
    dense = np.log1p(np.maximum(integers, 0)).astype(np.float32)
    ids = categories % np.array(cardinalities)
    return Batch(torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(labels).float())


def _split(
    text: NDArray[np.uint8], lines: Sequence[bytes], *, fields: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and length of every field, ``[lines, fields]``."""
    ends = np.flatnonzero((text == TAB) | (text == NEWLINE))
    if ends.size != len(lines) * fields or (text[ends[fields - 1 :: fields]] != NEWLINE).any():
        found = [line.count(b"\t") + 1 for line in lines]
        row = next(row for row, count in enumerate(found) if count != fields)
        raise MalformedLine(row, f"{found[row]} fields separated by tabs, {fields} expected")
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts.reshape(-1, fields), (ends - starts).reshape(-1, fields)


class _Fields:
    """Reads columns of fields as numbers."""

    def __init__(self, text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self._text = text
        self._starts = starts
        self._lengths = lengths

    def integers(self, columns: slice) -> NDArray[np.int64]:
        starts, lengths = self._starts[:, columns], self._lengths[:, columns]
        negative = (self._text[starts] == MINUS) & (lengths > 0)
        values, good = self._digits(starts + negative, lengths - negative, base=10)
        self._check(good & (lengths != negative) | (lengths == 0), columns, "decimal integer")
        return np.where(negative, -values, values)

    def numbers(self, columns: slice, *, base: int, kind: str, allowed: int | None = None) -> NDArray[np.int64]:
        """Unsigned numbers; with ``allowed``, none may be blank and all must be smaller."""
        lengths = self._lengths[:, columns]
        values, good = self._digits(self._starts[:, columns], lengths, base=base)
        self._check(good if allowed is None else good & (lengths > 0) & (values < allowed), columns, kind)
        return values

    def _digits(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], *, base: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The values, and which of them are all digits of ``base`` and not too long."""
        values = np.zeros(starts.shape, np.int64)
        good = lengths <= LONGEST_NUMBER
        for place in range(min(int(lengths.max()), LONGEST_NUMBER)):
            inside = place < lengths
            digit = _DIGITS[self._text[np.where(inside, starts + place, 0)]]
            good &= ~inside | (digit < base)
            values = np.where(inside, values * base + digit, values)
        return values, good

    def _check(self, good: NDArray[np.bool_], columns: slice, kind: str) -> None:
        if good.all():
            return
        row, column = (int(place) for place in np.argwhere(~good)[0])
        field = column + columns.start
        start = int(self._starts[row, field])
        text = self._text[start : start + int(self._lengths[row, field])].tobytes()
        raise MalformedLine(row, f"field {field + 1} is {text[:40]!r}, not a {kind}")


def _digit_table() -> NDArray[np.int64]:
    table = np.full(256, NO_DIGIT, np.int64)
    for digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
        table[list(digits)] = range(16)
    return table


_DIGITS = _digit_table()
