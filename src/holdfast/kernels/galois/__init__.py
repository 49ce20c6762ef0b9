"""Sums and products in GF(2^8) over the bytes of row records: what parities are made of, and rebuilt from.

Records are ``[rows, words]``, C-contiguous uint32. Addition is XOR, so a sum does not depend on its order, and adding
the same record again takes it out. Numba and NumPy give the same bytes. No torch: servers run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol, cast

import numpy as np

from holdfast.errors import ConfigurationError
from holdfast.kernels.galois.reference import GENERATOR, POLYNOMIAL, Ids, Words, double, multiply
from holdfast.kernels.parts import in_shares
from holdfast.kernels.plain import plain, rows_inside
from holdfast.kernels.runs import Runs, runs_inside

__all__ = [
    "GENERATOR",
    "POLYNOMIAL",
    "Ids",
    "Words",
    "add",
    "add_from",
    "add_runs",
    "double",
    "encode",
    "multiply",
    "warm_up",
]


def add(target: Words, rows: Ids | None, records: Words, coefficient: int = 1, *, threads: int = 1) -> None:
    """``target[rows[n]] ^= coefficient · records[n]``, one after another: a row may stand there more than once.

    A row outside the target changes nothing and raises ConfigurationError.

    Args:
        target: ``[rows, words]``, written to.
        rows: Which of its rows, int64, in any order, repeated or not. None: all, in their order.
        records: ``[rows, words]``: one for each.
        coefficient: From 0 to 255.
        threads: That share the work at most, where all rows are meant.
    """
    _require_target(target)
    _require_coefficient(coefficient)
    _require_records(records, len(target) if rows is None else len(rows), target)
    kernels, given = _kernels(), plain(records)
    if rows is not None:
        kernels.add(target, rows_inside(rows, len(target), "parities"), given, coefficient)
        return

    def add_share(_: Runs, at: slice) -> None:
        kernels.add(target[at], None, given[at], coefficient)

    in_shares(Runs.all(len(target)), add_share, row_bytes=4 * target.shape[1], threads=threads)


def add_runs(target: Words, runs: Runs, records: Sequence[Words], coefficient: int = 1, *, threads: int = 1) -> None:
    """``target[row] ^= coefficient · record`` for the rows of some runs, one run after another.

    Several records of each row are added in one pass where the coefficient is 1. A run outside the target changes
    nothing and raises ConfigurationError.

    Args:
        target: ``[rows, words]``, written to.
        runs: Which of its rows.
        records: ``[rows, words]`` each: one for each row.
        coefficient: From 0 to 255.
        threads: That share the work at most; with several, no run may meet another.
    """
    _require_target(target)
    _require_coefficient(coefficient)
    for each in records:
        _require_records(each, runs.size, target)
    kernels, given = _kernels(), [plain(each) for each in records]

    def add_share(share: Runs, at: slice) -> None:
        kernels.add_runs(target, share, [each[at] for each in given], coefficient)

    known = runs_inside(runs, len(target), "parities")
    in_shares(known, add_share, row_bytes=4 * target.shape[1], threads=threads)


def add_from(target: Words, source: Words, runs: Runs, records: Sequence[Words] = (), *, threads: int = 1) -> None:
    """``target ^= source[rows]`` for the rows of some runs, one run after another, and records of all of them.

    A run outside the source changes nothing and raises ConfigurationError.

    Args:
        target: ``[rows, words]``, written to: a row for each.
        source: ``[rows, words]``.
        runs: Which of its rows.
        records: ``[rows, words]`` each, added in the same pass.
        threads: That share the work at most.
    """
    _require_target(target)
    _require_records(target, runs.size, source)
    for each in records:
        _require_records(each, runs.size, target)
    kernels, given, more = _kernels(), plain(source), [plain(each) for each in records]

    def add_share(share: Runs, at: slice) -> None:
        kernels.add_from(target[at], given, share, [each[at] for each in more])

    known = runs_inside(runs, len(source), "parities")
    in_shares(known, add_share, row_bytes=4 * target.shape[1], threads=threads)


def encode(members: Words, parities: Words) -> None:
    """Write the parities of some members: number ``p`` is the sum of ``GENERATOR^(p·i)`` times member ``i``.

    Args:
        members: ``[members, words]``, at least one.
        parities: ``[parities, words]``, one or two, written to.
    """
    _require_target(parities)
    fits = members.dtype == np.uint32 and members.ndim == 2 and len(members) > 0 and 1 <= len(parities) <= 2
    if not fits or members.shape[1] != parities.shape[1]:
        found = f"{members.dtype} of shape {members.shape} and parities of shape {parities.shape}"
        raise ConfigurationError(
            f"members must be uint32, [members, words] like their one or two parities, got {found}"
        )
    _kernels().encode(plain(members), parities)


def warm_up() -> None:
    """Compile or load now what sums need, so that no message waits for it."""
    _kernels()


def _require_target(target: Words) -> None:
    flags = target.flags
    plain = flags.c_contiguous and flags.aligned and flags.writeable
    if target.ndim != 2 or target.dtype != np.uint32 or not plain:
        found = f"{target.dtype} of shape {target.shape}"
        raise ConfigurationError(f"sums are written to a plain uint32 matrix, got {found}")


def _require_coefficient(coefficient: int) -> None:
    if not 0 <= coefficient < 256:
        raise ConfigurationError(f"a coefficient is an element of GF(2^8), from 0 to 255, got {coefficient}")


def _require_records(records: Words, count: int, like: Words) -> None:
    if records.dtype != np.uint32 or records.shape != (count, like.shape[1]):
        found = f"{records.dtype} of shape {records.shape}"
        raise ConfigurationError(f"{count} records must be uint32 of shape {(count, like.shape[1])}, got {found}")


class _Kernels(Protocol):
    def add(self, target: Words, rows: Ids | None, records: Words, coefficient: int, /) -> None: ...
    def add_runs(self, target: Words, runs: Runs, records: Sequence[Words], coefficient: int, /) -> None: ...
    def add_from(self, target: Words, source: Words, runs: Runs, records: Sequence[Words], /) -> None: ...
    def encode(self, members: Words, parities: Words, /) -> None: ...


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.galois import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.galois import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
