"""What messages about parity carry, as tuples of arrays: the part that the protocol never reads.

Records are words of 32 bits; they travel as ``int32``, whose bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.payload import Arrays, Floats, Numbers

Words: TypeAlias = NDArray[np.uint32]

NO_GRADIENTS = np.empty(0, np.float32)
NO_WORDS = np.empty(0, np.uint32)


class Changed(NamedTuple):
    """Rows of parity that one host keeps, and what the records of one member changed by."""

    rows: Numbers
    records: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a host's parities need when a server has applied pushes.

    A mirror of the dense part needs the gradients of one push, and what the dense part has become after several.
    """

    changed: Sequence[Sequence[Changed]]  # by group, then by the parity's number
    dense: Floats = field(default_factory=lambda: NO_GRADIENTS)  # to a mirror, of one push
    lr_dense: float = 0.0
    dense_words: Words = field(default_factory=lambda: NO_WORDS)  # to a mirror, after several: all that it holds

    def to_arrays(self) -> Arrays:
        """For a message."""
        pairs = [(each.rows, each.records.view(np.int32)) for group in self.changed for each in group]
        rate = np.array([self.lr_dense]).view(np.int64)
        return (*(array for pair in pairs for array in pair), self.dense, rate, self.dense_words.view(np.int32))

    @classmethod
    def from_arrays(cls, arrays: Arrays, *, groups: int, parity: int) -> Self:
        """As ``to_arrays`` made them; raises ValueError for anything else."""
        _require(len(arrays) == 2 * groups * parity + 3, "a difference has two arrays for each group and parity")
        *pairs, dense, rate, dense_words = arrays
        _require(rate.shape == (1,) and rate.dtype == np.int64, "the last array holds a learning rate")
        found = [Changed(rows, _words(records)) for rows, records in _in_pairs(pairs)]
        changed = [found[first : first + parity] for first in range(0, len(found), parity)]
        return cls(
            changed=changed, dense=dense, lr_dense=float(rate.view(np.float64)[0]), dense_words=_words(dense_words)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeRecords:
    """One record for each stripe of a set, in the order of their numbers."""

    groups: Sequence[Words]  # for each group ``[stripes, words]``
    dense: Words  # of the dense parts among them, one after another

    def to_arrays(self) -> Arrays:
        """For a message."""
        return tuple(each.view(np.int32) for each in (*self.groups, self.dense))

    @classmethod
    def from_arrays(cls, arrays: Arrays, *, groups: int) -> Self:
        """As ``to_arrays`` made them; raises ValueError for anything else."""
        _require(len(arrays) == groups + 1, "records have an array for each group, and one more")
        *records, dense = map(_words, arrays)
        return cls(groups=records, dense=dense)


def _in_pairs(arrays: Sequence[NDArray[Any]]) -> Iterator[tuple[Numbers, NDArray[Any]]]:
    return zip(arrays[::2], arrays[1::2], strict=True)


def _words(array: NDArray[Any]) -> Words:
    _require(array.dtype == np.int32, "records are words")
    return array.view(np.uint32)


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)
