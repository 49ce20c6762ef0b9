"""What parity of a cluster's servers costs, and what it saves (ECRM)."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.planner.job import Overheads
from holdfast.planner.measured import ParityRates
from holdfast.policy.parity import GENTLE, Parity


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPrice:
    """A parity, at the rates of this version."""

    parity: Parity = Parity()  # noqa: RUF009 - frozen
    rates: ParityRates = ParityRates()  # noqa: RUF009

    @property
    def memory_share(self) -> float:
        """Memory beyond that of the tables."""
        return self.parity.parity / self.parity.data

    def rebuild_s(self, server_bytes: float) -> float:
        """Until redundancy is whole: a new server receives its rows, and the members of the parities that it keeps."""
        moved_bytes = (1 + self.parity.parity) * server_bytes
        fast_s = self.rates.rebuild_over_wire_floor * moved_bytes / self.rates.network_bytes_per_s
        gentle_s = moved_bytes / self.rates.gentle_rebuild_bytes_per_s
        return max(gentle_s, fast_s) if self.parity.rebuild == GENTLE else fast_s

    def escape_probability(self, *, mtbf_s: float, window_s: float, servers: int, lost_servers: int) -> float:
        """The probability that a failure cannot be repaired: too many servers at once, or more before the repair.

        ``window_s`` is the time until the lost servers are rebuilt.
        """
        spare = self.parity.parity - lost_servers
        if spare < 0:
            return 1.0
        group = min(servers, self.parity.units) - lost_servers
        another = min(1.0, window_s / mtbf_s * group / servers)
        return float(another ** (spare + 1))

    def overheads(self, *, total_s: float, failures: float, window_s: float) -> Overheads:
        """Updating parities all the time, and training slowly through each repair; nothing is paused."""
        slowed_s = failures * (1 - self.rates.throughput_in_recovery) * window_s
        return Overheads(parity_s=self.rates.overhead_share * total_s + slowed_s)
