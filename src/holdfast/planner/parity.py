"""What erasure-coded embedding servers cost and save (ECRM)."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.planner.job import Overheads
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """``parities`` parity rows for every ``data`` rows of as many servers; any ``parities`` servers may be lost.

    The shares are of training time: what keeping parity up to date takes, and by how much training slows down while a
    lost server is rebuilt. Measure them; by default they are ECRM's for a model of 220 GB on 5 servers (2.6%, section
    4.3) and the upper end of its range (12%, section 4.2).
    """

    data: int = 4
    parities: int = 1
    update_share: float = 0.026
    slowdown_share: float = 0.12
    network_bytes_per_s: float = 3.125e9  # into one server: 25 Gbit/s

    def __post_init__(self) -> None:
        require_count(self, "data", self.data)
        require_count(self, "parities", self.parities)
        for name in ("update_share", "slowdown_share"):
            value = getattr(self, name)
            require(is_finite_number(value) and 0 <= value < 1, self, name, "at least 0 and below 1", value)
        require_duration(self, "network_bytes_per_s", self.network_bytes_per_s)

    @property
    def memory_share(self) -> float:
        """Memory beyond that of the tables."""
        return self.parities / self.data

    def require_servers(self, servers: int) -> None:
        """Refuse a code that is wider than the cluster."""
        if self.data + self.parities > servers:
            raise ConfigurationError(
                f"parity over {self.data} + {self.parities} servers needs that many, and there are {servers}: use "
                f"data={max(1, servers - self.parities)} or add servers"
            )

    def rebuild_s(self, server_bytes: float) -> float:
        """The time to rebuild one server, which reads from ``data`` others for each of its rows."""
        return self.data * server_bytes / self.network_bytes_per_s

    def escape_probability(self, *, mtbf_s: float, window_s: float, servers: int, lost_servers: int) -> float:
        """The probability that a failure cannot be repaired: too many servers at once, or more before the repair.

        ``window_s`` is the time until the lost servers are rebuilt.
        """
        spare = self.parities - lost_servers
        if spare < 0:
            return 1.0
        group = min(servers, self.data + self.parities) - lost_servers
        another = min(1.0, window_s / mtbf_s * group / servers)
        return float(another ** (spare + 1))

    def overheads(self, *, total_s: float, failures: float, window_s: float) -> Overheads:
        """Updating parities all the time, and training slowly through each repair; nothing is paused."""
        return Overheads(parity_s=self.update_share * total_s + failures * self.slowdown_share * window_s)
