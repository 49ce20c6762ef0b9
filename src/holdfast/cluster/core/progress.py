"""How far a worker came."""

from __future__ import annotations

from typing import Any, NamedTuple


class Progress(NamedTuple):
    """A worker's last push, and the place in the data from which its next step starts."""

    pushed: int
    place: Any  # bytes, or None at the beginning


BEGINNING = Progress(0, None)
