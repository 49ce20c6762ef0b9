"""What the protocol of parity needs to know of stripes and of the records in them: nothing about bytes or arrays.

A *stripe* here is one row wide: a row record on each of its members, and a parity of them on each of its hosts. The
dense part of a server is a stripe as well, with one member and a copy instead of a parity (its mirror).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

from holdfast.cluster.core.pace import Shard
from holdfast.cluster.core.progress import SavedProgress

Hosts: TypeAlias = tuple[int, ...]  # the servers that keep the parities of a stripe, in the order of parities


class StripeSet(Protocol):
    """Stripes of one ring. It never changes; all members of a ring mean the same stripe by the same name."""

    def __and__(self, other: Self, /) -> Self: ...

    def __or__(self, other: Self, /) -> Self: ...

    def __sub__(self, other: Self, /) -> Self: ...

    def __len__(self) -> int: ...


class Layout(Protocol):
    """Which server has what of which stripe, in closed form."""

    @property
    def none(self) -> StripeSet:
        """No stripe."""
        ...

    def owned(self, server: int) -> StripeSet:
        """All stripes that a server has a row of, and that of its dense part."""
        ...

    def hosted(self, server: int) -> StripeSet:
        """All stripes whose parity a server keeps."""
        ...

    def by_hosts(self, stripes: StripeSet) -> Mapping[Hosts, StripeSet]:
        """Stripes that share their hosts, together. No set is empty."""
        ...

    def by_member(self, stripes: StripeSet) -> Mapping[int, StripeSet]:
        """By server that has a row in some of them, those. No set is empty."""
        ...

    def block(self, stripes: StripeSet) -> StripeSet:
        """Some of them, to be rebuilt in one go; all of one set of hosts."""
        ...


@dataclass(frozen=True, slots=True)
class Syndrome:
    """What a host found out about lost rows: for each stripe, the sum over them of c(p, member) times the record."""

    stripes: StripeSet
    records: Any


class Accumulator(Protocol):
    """What a host gathers while it decodes: for each parity p and stripe, the sum of c(p, member) times its record."""

    def add(self, member: int, stripes: StripeSet, records: Any) -> None:
        """A member's records."""
        ...

    def absorb(self, member: int, difference: Any) -> None:
        """A difference of a member whose records were added; of it, what concerns these stripes."""
        ...

    def syndrome(self, stripes: StripeSet) -> Any:
        """For some of the stripes: parity XOR sum, that is the sum over the rows that were not added."""
        ...


class Records(Shard, Protocol):
    """A shard whose rows are members of stripes, and that keeps parities of others' rows."""

    # ---- rows ------------------------------------------------------------------------------------------------------

    def pulled(self, rows: Any) -> StripeSet:
        """The stripes that a pull reads."""
        ...

    def touched(self, gradients: Any) -> StripeSet:
        """The stripes that a push changes."""
        ...

    def update(self, step: int, gradients: Mapping[int, Any], without: StripeSet) -> None:
        """Apply as ``apply`` does, except to these stripes, and note what changed."""
        ...

    def take_changes(self) -> Mapping[int, Any]:
        """What was noted since this was last called. By host: the difference that its parities need."""
        ...

    def give(self, stripes: StripeSet) -> Any:
        """Records of the rows of this server."""
        ...

    def solve(self, stripes: StripeSet, syndromes: Mapping[int, Syndrome], lost: tuple[int, ...]) -> None:
        """Take rows from the syndromes of as many hosts as rows are lost in each stripe, which may be of more stripes.

        Whose rows are lost is in ``lost``, this server among them.
        """
        ...

    def fall_back(self, stripes: StripeSet, dense: Any) -> SavedProgress:
        """Take the newest rows saved; how far workers had come when they were.

        The dense part, where it is among them, is a worker's copy, which is newer; ``dense`` is None if there is none.
        """
        ...

    # ---- parities --------------------------------------------------------------------------------------------------

    def clear(self, stripes: StripeSet) -> None:
        """Parities as they are of rows that are all 0."""
        ...

    def add(self, member: int, stripes: StripeSet, records: Any) -> None:
        """Add a member's records to parities that lack them."""
        ...

    def absorb(self, member: int, difference: Any, without: StripeSet) -> None:
        """Take a difference into the parities, except those of these stripes."""
        ...

    def retold(self, member: int, difference: Any, host: int, without: StripeSet) -> Any:
        """Of a difference that a member sent here: what another host needs, of the stripes that both keep.

        Except these stripes.
        """
        ...

    def accumulator(self, stripes: StripeSet) -> Accumulator:
        """For decoding rows of these stripes."""
        ...


@dataclass(frozen=True, slots=True)
class Protection:
    """Where a server's rows are protected: which stripes there are, and its records of them."""

    layout: Layout
    records: Records
    together: int = 1  # most pushes of a worker of which hosts are told in one difference, in asynchronous training
    soon: int = 0  # so few rows come in blocks before a question for some of them, behind those for blocks, is answered
