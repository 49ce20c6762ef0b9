"""What a process is called in ``top`` and ``ps -o comm``: the member that it is now."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from holdfast.cluster.core.members import Member
from holdfast.cluster.launch.base import label

_SET_NAME = 15  # of prctl
_MOST_BYTES = 15


def name_process(member: Member) -> None:
    """Spares take places, and processes go on as their next incarnation: what they were started as says little.

    To be called by the main thread. Where the system has no such names, nothing happens.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_NAME, label(member).encode()[:_MOST_BYTES])
