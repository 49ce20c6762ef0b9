"""Settings: what rarely needs changing."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.lease import TTL_S
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration
from holdfast.storage.reserve import LEAST_RESERVE_BYTES, RESERVE_BYTES

_COUNTS = ("frame_bytes", "uploads")
_TIMES = ("grace_s", "retry_s", "takeover_s", "part_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What rarely needs changing. Times in seconds, sizes in bytes."""

    buffer_bytes: int | None = None  # snapshot memory; None: one full snapshot, at most a quarter of what is available
    frame_bytes: int = 32 * 2**20  # the unit of the buffer and about the size of a bundle
    grace_s: float = 600.0  # how long a dropped checkpoint's objects stay
    reserve_bytes: int = RESERVE_BYTES  # kept in a local run, to be released when the disk is full; 0: none
    retry_s: float = 120.0  # how long an unreachable store is tried before a save fails
    takeover_s: float = 300.0  # how long resume() waits for a predecessor's agent
    lease_s: float = TTL_S  # how long after its last sign of life an agent counts as at work
    part_timeout_s: float = 1800.0  # how long a rank's part waits for the others'
    agent_timeout_s: float = 120.0  # how long an agent may give no sign of life before it is killed and replaced
    store_timeout_s: float = 600.0  # how much longer than retry_s it may wait for one operation of its store
    ranks_s: float = 1800.0  # how long a rank waits for the others, where all must come, before it raises
    uploads: int = 2  # frames written at the same time
    niceness: int = 5  # of the agent: training comes first; more, and a save takes long where training takes all CPUs
    handle_sigterm: bool = True
    baseline_in_memory: bool = True  # for rows stored as differences; else the agent reads the baseline for every save

    def __post_init__(self) -> None:
        for name in _COUNTS if self.buffer_bytes is None else ("buffer_bytes", *_COUNTS):
            require_count(self, name, getattr(self, name))
        is_reserve = isinstance(self.reserve_bytes, int) and (
            self.reserve_bytes == 0 or self.reserve_bytes >= LEAST_RESERVE_BYTES
        )
        require(is_reserve, self, "reserve_bytes", f"0 or at least {LEAST_RESERVE_BYTES}", self.reserve_bytes)
        for name in _TIMES:
            value = getattr(self, name)
            require(is_finite_number(value) and value >= 0, self, name, "a finite number of at least 0", value)
        for name in ("lease_s", "agent_timeout_s", "store_timeout_s", "ranks_s"):
            require_duration(self, name, getattr(self, name))
        for name in ("handle_sigterm", "baseline_in_memory"):
            require(isinstance(getattr(self, name), bool), self, name, "True or False", getattr(self, name))
        require(isinstance(self.niceness, int), self, "niceness", "a whole number", self.niceness)
