"""What kernels are told about many tables at once: one line of numbers for each table, and for each encoded column.

Addresses are those of memory on the device. All numbers are 64-bit integers.
"""

from __future__ import annotations

from typing import NamedTuple

LINE = 16  # numbers of a line


class ListedLine(NamedTuple):
    """A table whose rows have to be listed."""

    first_set: int  # addresses of up to three sets whose union is listed; 0: none
    second_set: int
    third_set: int
    start: int  # the range of rows
    stop: int
    bound: int  # the list has room for so many
    ids: int  # the list's address: int64, whatever the bound leaves over filled with ``start``
    frame_ids: int  # where ids go that count from their chunk's first one
    id_bytes: int  # of these: 4 or 8
    chunk_rows: int
    chunks: int
    tally: int  # the address of: how many rows there are; each chunk's first id; each chunk's last id


class EncodedLine(NamedTuple):
    """An encoded column."""

    escaped: int  # the address of the set of escaped rows, by their numbers among those listed
    bound: int  # rows there is room for
    total: int  # the address of how many there are
    chunk_rows: int
    chunks: int
    counts: int  # the address of how many escaped rows each chunk has
    places: int  # the address of a list of these rows
    room: int  # the list has room for so many
    ids: int  # the address of the rows' ids; 0: they are contiguous
    start: int  # and begin here
    source: int  # the address of the column
    words: int  # of 32 bits, of a row of it
    escape_rows: int  # where escaped rows go as they are
    sample_rows: int  # where sampled rows go
    sample: int  # of each chunk, so many


def lines_of(lines: list[ListedLine] | list[EncodedLine]) -> list[int]:
    """The numbers of all lines, each filled up to the same length."""
    return [number for line in lines for number in (*line, *(0,) * (LINE - len(line)))]
