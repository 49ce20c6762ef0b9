"""The rates that plans are priced with, each with the command that measured it. The only place that has them.

A rate is replaced by what the command prints as its figure, or what follows from that: nothing else has to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.policy.arguments import is_finite_number, require, require_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A rate, and where it comes from.

    Args:
        key: Its name, in the JSON of plans.
        value: What it is.
        figure: In the JSON of a command: the rate itself, or what it is derived from. None: no command measures it.
        source: The command, and how the rate follows from its figure where it is not the figure itself.
    """

    key: str
    value: float
    figure: str | None
    source: str


PARITY_OVERHEAD: Final = Measured(
    key="parity_overhead",
    value=0.017,
    figure="parity_overhead",
    source="python -m benchmarks.claims.parity steps --scale full: the worse of 1 and 2 workers, on an H200, 16 cores",
)
THROUGHPUT_IN_RECOVERY: Final = Measured(
    key="throughput_in_recovery",
    value=0.947,
    figure="throughput_in_recovery",
    source="python -m benchmarks.claims.parity gentle --scale full: of what it was in the 3 s before, on an H200, "
    "16 cores",
)
REBUILD_OVER_WIRE_FLOOR: Final = Measured(
    key="rebuild_over_wire_floor",
    value=1.71,
    figure="rebuild_over_wire_floor",
    source="python -m benchmarks.claims.parity fast --scale full: 2 GB of 5 servers, on an H200, 16 cores",
)
GENTLE_REBUILD_BYTES_PER_S: Final = Measured(
    key="gentle_rebuild_bytes_per_s",
    value=24.5e6,
    figure="gentle_rebuild_s",
    source="derived from python -m benchmarks.claims.parity gentle --scale full, on an H200, 16 cores: the 0.82 GB "
    "that a server receives, over 33.4 s",
)
NETWORK_BYTES_PER_S: Final = Measured(
    key="network_bytes_per_s",
    value=3.0e9,
    figure=None,
    source="assumed: about what a network card of 25 Gbit a second carries; pass --network-gb-per-s",
)
COPY_BYTES_PER_S: Final = Measured(
    key="copy_bytes_per_s",
    value=5.0e9,
    figure="holdfast_delta_wait_s",
    source="derived from python -m benchmarks stall: 205 MB over 37 ms, rounded down",
)
RESTART_S: Final = Measured(
    key="restart_s",
    value=0.98,
    figure="full_pause_s",
    source="python -m benchmarks cluster: from a server's death to full speed where everyone goes back, 512 MB",
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
