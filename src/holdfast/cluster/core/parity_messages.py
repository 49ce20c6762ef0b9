"""What servers of a ring say to each other about parities, and to the controller. Stripes and records are opaque."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.cluster.core.members import Member, View
from holdfast.cluster.core.progress import Progress

# ---- a server to the hosts of its stripes, and back ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """Pushes changed rows: what the parities at this host need. In synchronous training: a step did, of worker 0."""

    pushes: Mapping[int, int]  # by worker, the last of them; of those before it, this host was told earlier
    records: Any  # arrays
    stable: Mapping[int, int] = field(default_factory=dict)  # by worker, its last push that all hosts have


@dataclass(frozen=True, slots=True)
class Absorbed:
    """So many differences of this stream are in the parities."""

    count: int


@dataclass(frozen=True, slots=True)
class Want:
    """From a server that rebuilds its rows: decode those of these stripes."""

    attempt: int
    stripes: Any
    hosts: tuple[int, ...]  # of all of them


@dataclass(frozen=True, slots=True)
class Given:
    """To it: a syndrome, in which only the rows of these servers are left, and which pushes its own rows hold."""

    attempt: int
    stripes: Any
    records: Any  # arrays
    lost: tuple[Member, ...]  # each in the life that does not have its row
    held: Mapping[int, int]  # by worker, the last push


@dataclass(frozen=True, slots=True)
class Refused:
    """To it: this host cannot decode these, now or later."""

    attempt: int
    stripes: Any


@dataclass(frozen=True, slots=True)
class Fell:
    """To hosts: these rows came from a save, so that no parity is theirs that holds a predecessor's."""

    stripes: Any


@dataclass(frozen=True, slots=True)
class Dropped:
    """The answer: nothing is left here of the rows in whose place these came."""

    stripes: Any
    times: int  # that this host had to encode parities anew, this one included


@dataclass(frozen=True, slots=True)
class Retold:
    """A difference of a member, from a host that kept it to another."""

    difference: Difference
    stripes: Any  # of both hosts, except those whose rows came from a save since: it says nothing of these


@dataclass(frozen=True, slots=True)
class Reconcile:
    """From a host to another of the same stripes, once a member was replaced: what not all hosts may have of it."""

    member: int
    incarnation: int  # of the replacement
    kept: tuple[Retold, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The answer: this host has all that the other one has of that member, and has said what it has itself."""

    member: int
    incarnation: int


# ---- a host to the members of its stripes, and back ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """For a member's records, to decode another's or to encode a parity."""

    attempt: int
    stripes: Any
    hosts: tuple[int, ...]  # of all of them


@dataclass(frozen=True, slots=True)
class Values:
    """The answer: records of those that are there, and the pushes that they hold. Others follow when they are."""

    attempt: int
    stripes: Any
    records: Any  # arrays
    held: Mapping[int, int]  # by worker, the last push
    more: bool = False  # whether others are there as well, which hold other pushes, and come next


@dataclass(frozen=True, slots=True)
class Forget:
    """To a member: what it did not have when it was asked is not needed any more."""

    attempt: int


# ---- with the controller ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rebuild:
    """To a new server: take the rows of the one that died from the parities of others."""

    view: View
    absent: Mapping[int, Progress]  # how far workers came that have left


@dataclass(frozen=True, slots=True)
class FallBack:
    """To a server: of the rows that parities cannot give, take the newest saved."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """To a server whose rows come back: the job ends behind a save that waits for them."""


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """From a server: parities cannot give so many of its rows."""

    rows: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """From a server: all its rows are there, and hold what they should; so many came from a save."""

    rows: int
    fallen: int


@dataclass(frozen=True, slots=True)
class Drops:
    """How often a host had to encode parities anew when it last did for a server's rows."""

    host: Member
    times: int


@dataclass(frozen=True, slots=True)
class Redundant:
    """From a server: all its rows are there, and all parities that it keeps.

    It says so in each view, and takes nothing more from those whom that view replaces. Its rows are protected when
    those who had to encode parities anew for them have said as much themselves.
    """

    view: int
    stripes: int  # parities that were encoded since it last said so
    times: int  # that it had to encode parities anew
    dropped: tuple[Drops, ...]


ParityMessage: TypeAlias = (
    Difference | Absorbed | Want | Given | Refused | Fell | Dropped | Reconcile | Agreed | Ask | Values | Forget
)
