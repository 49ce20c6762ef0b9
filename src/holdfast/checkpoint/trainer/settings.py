"""Settings that rarely need changing."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.commit.lease import TTL_S
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration
from holdfast.storage.reserve import LEAST_RESERVE_BYTES, RESERVE_BYTES

_COUNTS = ("frame_bytes", "uploads")
_TIMES = ("grace_s", "retry_s", "takeover_s", "part_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that rarely need changing. Times are in seconds, sizes in bytes.

    Args:
        buffer_bytes: Memory for snapshots. None: enough for one full snapshot, at most a quarter of available memory.
        device_buffer_bytes: Memory for snapshots on each GPU that holds tables. A snapshot that fits leaves it while
            training goes on; of a larger one, whole tables are read in slices between steps, and training waits for
            the rest. None: enough for one full snapshot, at most a 32nd of the GPU's memory. 0: none.
        device_baseline_bytes: Memory on each GPU that holds tables, if rows are stored as differences, for what these
            refer to: about 0.28 of the weights' bytes, for rows of 64 values. The GPU then makes the differences, and
            only their few bits leave it. Rows of tables that do not fit leave it as they are, and the agent makes
            their differences. 0: none.
        frame_bytes: The unit of the buffer, and about the size of a stored object.
        grace_s: How long the objects of a dropped checkpoint stay, so that readers can finish.
        reserve_bytes: Space held back in a local run and released when the disk is full. 0: none.
        retry_s: How long to retry an unreachable store before a save fails.
        takeover_s: How long ``resume()`` waits for the last trainer's agent.
        lease_s: How long after its last lease renewal an agent still counts as working.
        part_timeout_s: How long one rank's part of a save waits for the other ranks' parts.
        agent_timeout_s: How long an agent may be unresponsive before it is killed and replaced.
        store_timeout_s: How much longer than ``retry_s`` an agent may wait for a single store operation.
        ranks_s: How long a rank waits for the others, where all must participate, before it raises ``RanksMissing``.
        uploads: How many frames are written concurrently.
        niceness: The agent's niceness, so that training comes first. The higher, the longer a save takes on a busy
            machine.
        handle_sigterm: Catch SIGTERM: save at the next step, then raise ``Terminated``.
        baseline_in_memory: If rows are stored as differences, the agent keeps the baseline in memory. False rereads it
            for every save.
    """

    buffer_bytes: int | None = None
    device_buffer_bytes: int | None = None
    device_baseline_bytes: int = 0
    frame_bytes: int = 32 * 2**20
    grace_s: float = 600.0
    reserve_bytes: int = RESERVE_BYTES
    retry_s: float = 120.0
    takeover_s: float = 300.0
    lease_s: float = TTL_S
    part_timeout_s: float = 1800.0
    agent_timeout_s: float = 120.0
    store_timeout_s: float = 600.0
    ranks_s: float = 1800.0
    uploads: int = 2
    niceness: int = 5
    handle_sigterm: bool = True
    baseline_in_memory: bool = True

    def __post_init__(self) -> None:
        for name in _COUNTS if self.buffer_bytes is None else ("buffer_bytes", *_COUNTS):
            require_count(self, name, getattr(self, name))
        room = self.device_buffer_bytes
        is_room = room is None or (isinstance(room, int) and not isinstance(room, bool) and room >= 0)
        require(is_room, self, "device_buffer_bytes", "None or a whole number of at least 0", room)
        kept = self.device_baseline_bytes
        is_kept = isinstance(kept, int) and not isinstance(kept, bool) and kept >= 0
        require(is_kept, self, "device_baseline_bytes", "a whole number of at least 0", kept)
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
