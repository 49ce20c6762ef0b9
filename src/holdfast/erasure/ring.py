"""The servers over which stripes rotate. Whole numbers only: the cluster's protocol reads it too.

A ring of m servers has positions 0 to m - 1. Stripes come in cycles of m: stripe ``q`` of each cycle has its parities
on the servers at positions ``q`` to ``q + r - 1`` and its members on those at ``q + r`` to ``q + r + k - 1``, all
modulo m. So in every cycle each server is a member of k stripes, once with each member number, and keeps r parities,
one of each number.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Servers in the order of their positions.

    Args:
        servers: Their numbers, at least ``data + parity`` of them.
        data: k, the members of a stripe.
        parity: r, the parities of a stripe.
    """

    servers: tuple[int, ...]
    data: int
    parity: int

    def __post_init__(self) -> None:
        if self.data < 1 or self.parity < 1 or self.size < self.data + self.parity:
            wanted = f"{self.data} members and {self.parity} parities"
            raise ConfigurationError(f"stripes of {wanted} do not fit a ring of {self.size} servers")
        if len(set(self.servers)) != self.size:
            raise ConfigurationError(f"a server has one position in a ring, got {self.servers}")

    @property
    def size(self) -> int:
        """How many servers it has."""
        return len(self.servers)

    def position(self, server: int) -> int:
        """Where a server stands."""
        return self.servers.index(server)

    def stripe(self, position: int, member: int) -> int:
        """The stripe of a cycle in which the server at a position is the member with this number."""
        return (position - self.parity - member) % self.size

    def member(self, position: int, stripe: int) -> int | None:
        """The number that the server at a position has among a stripe's members; None: it is none of them."""
        found = (position - self.parity - stripe) % self.size
        return found if found < self.data else None

    def members(self, stripe: int) -> tuple[int, ...]:
        """The positions of a stripe's members, by their numbers."""
        return tuple((stripe + self.parity + member) % self.size for member in range(self.data))

    def host(self, stripe: int, parity: int) -> int:
        """The position of the server that keeps a parity."""
        return (stripe + parity) % self.size

    def hosts(self, stripe: int) -> tuple[int, ...]:
        """The positions of the servers that keep a stripe's parities, by their numbers."""
        return tuple(self.host(stripe, parity) for parity in range(self.parity))

    def hosted(self, position: int, parity: int) -> int:
        """The stripe of a cycle of which the server at a position keeps the parity with this number."""
        return (position - parity) % self.size
