"""How rows on servers are protected by the memory of other servers: a plain value that every process can read."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import require
from holdfast.policy.base import Policy, registered

MOST_DATA, MOST_PARITY = 255, 2
MACHINE, PROCESS = "machine", "process"
GENTLE, FAST = "gentle", "fast"


@registered("parity")
@dataclass(frozen=True, slots=True, kw_only=True)
class Parity(Policy):
    """Parities of rows and their slots, kept by other servers: a lost server's rows are rebuilt from them, exactly.

    Every ``data`` rows on as many servers have ``parity`` parities on others, which takes ``parity / data`` of the
    tables' memory. That many servers of the ``data + parity`` may die at a time, and no row is lost.

    Args:
        data: How many rows share their parities: 1 (each parity is a copy) to 255.
        parity: How many parities they have, so how many servers may die at a time: 1 or 2.
        strict: Refuse to start where the death of one machine would cost more rows than parities can make up for.
            Otherwise a warning says so.
        domain: What fails together: ``"machine"``, all servers of it, or ``"process"``, each server on its own.
        rebuild: How a lost server's rows come back that nobody waits for: ``"gentle"``, so that training keeps its
            pace, or ``"fast"``, so that the next death finds redundancy whole the sooner.
    """

    data: int = 4
    parity: int = 1
    strict: bool = False
    domain: str = MACHINE
    rebuild: str = GENTLE

    def __post_init__(self) -> None:
        _require_between(self, "data", self.data, MOST_DATA)
        _require_between(self, "parity", self.parity, MOST_PARITY)
        require(isinstance(self.strict, bool), self, "strict", "True or False", self.strict)
        require(self.domain in (MACHINE, PROCESS), self, "domain", f'"{MACHINE}" or "{PROCESS}"', self.domain)
        require(self.rebuild in (GENTLE, FAST), self, "rebuild", f'"{GENTLE}" or "{FAST}"', self.rebuild)

    @property
    def units(self) -> int:
        """How many servers share in the parities of one row: its own, those of the other rows, and the parities'."""
        return self.data + self.parity

    def require_servers(self, servers: int) -> None:
        """Refuse a job of too few servers.

        Args:
            servers: How many it has.
        """
        if servers <= self.parity:
            least = f"parity={self.parity} needs {self.parity + 1} servers or more"
            raise ConfigurationError(f"a server is protected by others: {least}, and this job has {servers}")
        if servers < self.units:
            raise ConfigurationError(
                f"Parity(data={self.data}, parity={self.parity}) needs {self.units} servers, and this job has "
                f"{servers}: start more, or pass data={servers - self.parity} or less"
            )


def _require_between(owner: object, name: str, value: object, most: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    require(fits, owner, name, f"a whole number from 1 to {most}", value)
