"""How large the snapshot buffer is."""

from __future__ import annotations

from holdfast.checkpoint.wire.buffer import PAGE
from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.errors import ConfigurationError

_SHARE = 4  # of the available memory, at most one part in so many
_MARGIN_BYTES = 2**20  # random states, the reader's state, padding
_DEVICE_SHARE = 32  # of a device's memory, which training needs itself
_DEVICE_MARGIN = 8  # ids, and the ends of areas
_MIN_FRAMES = 2  # one is filled while another is written


def frames_for(
    full_bytes: int, widest_row_bytes: int, *, buffer_bytes: int | None, frame_bytes: int
) -> tuple[int, int]:
    """Number and size of frames for the wanted buffer, or for one full snapshot of so many bytes."""
    if frame_bytes < 16 * PAGE:
        raise ConfigurationError(f"frame_bytes={frame_bytes} is too small; pass at least {16 * PAGE}")
    wanted = buffer_bytes if buffer_bytes is not None else _affordable(full_bytes + _MARGIN_BYTES)
    frame = max(min(frame_bytes, wanted // _MIN_FRAMES), 16 * PAGE, 2 * widest_row_bytes)
    frame = -(-frame // PAGE) * PAGE
    return max(_MIN_FRAMES, -(-wanted // frame)), frame


def device_bytes(full_bytes: int, *, memory_bytes: int, wanted: int | None) -> int:
    """The size of a device's buffer: as wanted, or for one full snapshot of so many bytes if that is little there."""
    if wanted is not None:
        return wanted
    return min(full_bytes + full_bytes // _DEVICE_MARGIN + _MARGIN_BYTES, memory_bytes // _DEVICE_SHARE)


def _affordable(wanted_bytes: int) -> int:
    available = available_bytes()
    return wanted_bytes if available is None else min(wanted_bytes, available // _SHARE)
