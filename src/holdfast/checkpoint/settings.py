"""Settings: what rarely needs changing."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.lease import TTL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What rarely needs changing. Times in seconds, sizes in bytes."""

    buffer_bytes: int | None = None  # snapshot memory; None: one full snapshot, at most a quarter of what is available
    frame_bytes: int = 32 * 2**20  # the unit of the buffer and about the size of a bundle
    grace_s: float = 600.0  # how long a dropped checkpoint's objects stay
    retry_s: float = 120.0  # how long an unreachable store is tried before a save fails
    takeover_s: float = 300.0  # how long resume() waits for a predecessor's agent
    lease_s: float = TTL_S  # how long after its last sign of life an agent counts as at work
    part_timeout_s: float = 1800.0  # how long a rank's part waits for the others'
    uploads: int = 2  # frames written at the same time
    niceness: int = 10  # of the agent: training comes first
    handle_sigterm: bool = True
