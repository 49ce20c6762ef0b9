"""Which servers form a ring, so that what fails together costs no ring more members than it must.

Servers are divided into as many rings as there is room for, of sizes as even as possible: between n and 2n - 1 servers,
where a stripe has n units. In a ring of fewer than 2n servers any two stand within n successive positions, and so share
a stripe of each cycle. The death of a machine therefore costs every stripe one unit at most just when no ring has two
of its servers. Dealing servers to the rings in turn, machine by machine, gives each ring as few of a machine as can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.erasure.ring import Ring
from holdfast.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Servers of one ring that fail together."""

    domain: str
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """All servers of a job in rings.

    Args:
        rings: Each server is in one of them.
        crowds: Servers of a ring that share a failure domain.
    """

    rings: tuple[Ring, ...]
    crowds: tuple[Crowd, ...] = ()

    def ring_of(self, server: int) -> Ring:
        """The ring that a server is in."""
        return next(ring for ring in self.rings if server in ring.servers)

    @property
    def most_lost(self) -> int:
        """How many members of a ring the death of one domain costs, at most."""
        return max((len(crowd.servers) for crowd in self.crowds), default=1)


def seat(servers: int, *, data: int, parity: int, domains: Sequence[str] | None = None) -> Seating:
    """Divide servers into rings.

    Args:
        servers: How many there are, at least ``data + parity``.
        data: k, the members of a stripe.
        parity: r, the parities of a stripe.
        domains: What each server fails together with. None: each fails on its own.
    """
    if servers < data + parity:
        wanted = f"{data} + {parity} servers or more"
        raise ConfigurationError(f"parity of {data} + {parity} needs {wanted}, and this job has {servers}")
    names = [str(server) for server in range(servers)] if domains is None else list(domains)
    if len(names) != servers:
        raise ConfigurationError(f"{servers} servers have a failure domain each, got {len(names)}")
    count = servers // (data + parity)
    together = Counter(names)
    in_turn = sorted(range(servers), key=lambda server: (-together[names[server]], names.index(names[server]), server))
    dealt = [_spread(in_turn[first::count], names) for first in range(count)]
    rings = tuple(Ring(servers=tuple(each), data=data, parity=parity) for each in dealt)
    return Seating(rings=rings, crowds=tuple(crowd for ring in rings for crowd in _crowds(ring, names)))


def _spread(servers: Sequence[int], names: Sequence[str]) -> list[int]:
    """Servers of one domain as far apart as others can keep them: first one of each domain, then the second of each."""
    seen: Counter[str] = Counter()
    rounds = []
    for server in servers:
        rounds.append((seen[names[server]], server))
        seen[names[server]] += 1
    return [server for _, server in sorted(rounds, key=lambda each: each[0])]


def _crowds(ring: Ring, names: Sequence[str]) -> list[Crowd]:
    together: dict[str, list[int]] = {}
    for server in ring.servers:
        together.setdefault(names[server], []).append(server)
    return [Crowd(domain=name, servers=tuple(found)) for name, found in together.items() if len(found) > 1]
