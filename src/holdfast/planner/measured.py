"""The rates that plans are priced with, each with the command that measured it. The only place that has them.

A rate is replaced by what the command prints under its key: nothing else has to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.policy.arguments import is_finite_number, require, require_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure, and where it comes from."""

    key: str
    value: float
    source: str  # the command whose JSON has the key, or the paper that stands in until it has run


PARITY_OVERHEAD: Final = Measured(
    key="parity_overhead", value=0.017, source="python -m benchmarks parity: the worse of 1 and 2 workers, 16 cores"
)
THROUGHPUT_IN_RECOVERY: Final = Measured(
    key="throughput_in_recovery",
    value=0.947,
    source="python -m benchmarks.claims.parity gentle: of what it was in the 3 s before, on an H200, 16 cores",
)
REBUILD_OVER_WIRE_FLOOR: Final = Measured(
    key="rebuild_over_wire_floor", value=1.71, source="python -m benchmarks parity: 2 GB of 5 servers, 16 cores"
)
GENTLE_REBUILD_BYTES_PER_S: Final = Measured(
    key="gentle_rebuild_bytes_per_s",
    value=24.5e6,
    source="python -m benchmarks.claims.parity gentle: a server receives 0.82 GB in 33.4 s, 16 cores",
)
NETWORK_BYTES_PER_S: Final = Measured(
    key="network_bytes_per_s", value=3.0e9, source="ZeroMQ over TCP, not encrypted; 0.8 to 1.1 GB/s encrypted"
)
COPY_BYTES_PER_S: Final = Measured(
    key="delta_stall_over_dcp_best", value=5.0e9, source="python -m benchmarks stall: 205 MB in 37 ms"
)
RESTART_S: Final = Measured(
    key="partial_pause_over_full_pause", value=1.1, source="python -m benchmarks cluster: until full speed, 512 MB"
)

RATES: Final = (
    PARITY_OVERHEAD,
    THROUGHPUT_IN_RECOVERY,
    REBUILD_OVER_WIRE_FLOOR,
    GENTLE_REBUILD_BYTES_PER_S,
    NETWORK_BYTES_PER_S,
    COPY_BYTES_PER_S,
    RESTART_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRates:
    """What parity takes of a training, and how fast it gives rows back.

    Args:
        overhead_share: Of the training time, for keeping parities up to date.
        throughput_in_recovery: Of the training's own, until redundancy is whole again.
        rebuild_over_wire_floor: Time to rebuild fast, relative to moving the same bytes alone.
        gentle_rebuild_bytes_per_s: Into one server that is rebuilt gently: it rests most of the time.
        network_bytes_per_s: Into one server.
    """

    overhead_share: float = PARITY_OVERHEAD.value
    throughput_in_recovery: float = THROUGHPUT_IN_RECOVERY.value
    rebuild_over_wire_floor: float = REBUILD_OVER_WIRE_FLOOR.value
    gentle_rebuild_bytes_per_s: float = GENTLE_REBUILD_BYTES_PER_S.value
    network_bytes_per_s: float = NETWORK_BYTES_PER_S.value

    def __post_init__(self) -> None:
        share = self.overhead_share
        require(is_finite_number(share) and 0 <= share < 1, self, "overhead_share", "at least 0 and below 1", share)
        kept = self.throughput_in_recovery
        fits = is_finite_number(kept) and 0 < kept <= 1
        require(fits, self, "throughput_in_recovery", "above 0 and at most 1", kept)
        for name in ("rebuild_over_wire_floor", "gentle_rebuild_bytes_per_s", "network_bytes_per_s"):
            require_duration(self, name, getattr(self, name))
