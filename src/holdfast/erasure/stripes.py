"""Which parity rows protect which rows of a ring's servers, in closed form: nothing is kept per row.

Each server of a ring has an array of rows, of one width, cut into blocks of ``b`` rows. Block ``j`` belongs to cycle
``j // k``, and its server is member ``j % k`` there: with the server's position, that gives the stripe (see ``ring``).
Rows of a stripe's blocks that have the same offset are protected together. A server keeps its parity blocks by cycle,
then by parity number; its array of parity rows ends with the last one that protects a row. Where a server's array has
ended while others of the stripe go on, its rows count as zeros: however uneven arrays are, no row is without parity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.erasure.ring import Ring
from holdfast.errors import ConfigurationError

Ids: TypeAlias = NDArray[np.int64]
Integers: TypeAlias = NDArray[np.integer[Any]]

MOST_BLOCK_ROWS = 64  # hot rows often lie side by side: smaller blocks spread their parities over more servers
UNUSED_SHARE = 0.01  # of the rows, how many parity rows the last cycle may leave unused


class Slices(NamedTuple):
    """Rows by member number: those with number ``i`` are ``rows[order[cuts[i]:cuts[i + 1]]]``, in their order."""

    order: Ids
    cuts: list[int]


class Stripes:
    """The stripes of one ring's arrays of one width.

    Args:
        ring: The servers, their members and parities.
        sizes: How many rows the server at each position has.
        block_rows: How many rows a block has. None: as many as memory allows, up to 64.
    """

    def __init__(self, ring: Ring, sizes: Sequence[int], block_rows: int | None = None) -> None:
        if len(sizes) != ring.size:
            raise ConfigurationError(f"a ring of {ring.size} servers has as many arrays of rows, got {len(sizes)}")
        self.ring = ring
        self.sizes = tuple(sizes)
        self.block_rows = choose_block_rows(sizes, ring.parity) if block_rows is None else block_rows
        if self.block_rows < 1:
            raise ConfigurationError(f"a block has at least 1 row, got {self.block_rows}")

    def members(self, rows: Integers) -> Ids:
        """The number that the server of each row has among the members of the row's stripe."""
        return _remainders(rows.astype(np.int64, copy=False) // self.block_rows, self.ring.data)

    def slices(self, rows: Integers) -> Slices:
        """Rows of one server, divided by member number: each slice has one host for each parity."""
        members = self.members(rows).astype(np.uint8)  # of which NumPy sorts by counting
        counts = np.bincount(members, minlength=self.ring.data)
        return Slices(order=np.argsort(members, kind="stable"), cuts=[0, *np.cumsum(counts).tolist()])

    def parity_rows(self, rows: Integers, parity: int) -> Ids:
        """Where the parity with this number of each row is, in the array of the server that keeps it."""
        return self._moved(rows, self.ring.data, self.ring.parity, parity)

    def parities(self, parity_rows: Integers) -> Ids:
        """The numbers of parities in a server's array."""
        return _remainders(parity_rows.astype(np.int64, copy=False) // self.block_rows, self.ring.parity)

    def data_rows(self, parity_rows: Integers, member: int) -> Ids:
        """The rows of a member that parity rows protect. Those outside its server's array count as zeros."""
        return self._moved(parity_rows, self.ring.parity, self.ring.data, member)

    def extent(self, position: int, member: int) -> int:
        """How many rows a server has as the member with this number."""
        size, blocks = self.sizes[position], -(-self.sizes[position] // self.block_rows)
        if blocks <= member:
            return 0
        cycle = (blocks - 1 - member) // self.ring.data
        return cycle * self.block_rows + min(
            self.block_rows, size - (cycle * self.ring.data + member) * self.block_rows
        )

    def height(self, stripe: int) -> int:
        """How many rows the longest member of a stripe has, over all cycles."""
        return max(self.extent(at, member) for member, at in enumerate(self.ring.members(stripe)))

    def size(self, position: int) -> int:
        """How many parity rows a server keeps."""
        lasts = [
            self._moved(np.array(self.height(self.ring.hosted(position, parity)) - 1), 1, self.ring.parity, parity)
            for parity in range(self.ring.parity)
        ]
        return max(int(last) + 1 for last in lasts)

    def _moved(self, rows: Integers, from_blocks: int, to_blocks: int, block: int) -> Ids:
        """The same cycle and offset in an array with another number of blocks per cycle, in one of these."""
        given = rows.astype(np.int64, copy=False)
        blocks = given // self.block_rows
        moved: Ids = given + (blocks // from_blocks * to_blocks + block - blocks) * self.block_rows
        return moved


def _remainders(numbers: Ids, divisor: int) -> Ids:
    """What divisions leave: NumPy divides by one number several times as fast as it takes remainders."""
    left: Ids = numbers - numbers // divisor * divisor
    return left


def choose_block_rows(sizes: Sequence[int], parity: int) -> int:
    """A power of two, such that the last cycle leaves few parity rows unused, in proportion to all rows.

    Args:
        sizes: How many rows the server at each position of a ring has.
        parity: r, the parities of a stripe.
    """
    wanted = UNUSED_SHARE * sum(sizes) / len(sizes) / parity
    return 1 << min(max(int(wanted), 1), MOST_BLOCK_ROWS).bit_length() - 1
