"""How far a worker came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """A worker's last push, and the place in the data from which its next step starts."""

    pushed: int
    place: Any  # bytes, or None at the beginning


BEGINNING = Progress(0, None)


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """How far each worker had come when rows were saved that are loaded now.

    Args:
        newest: When the newest of them were: nothing of that is applied to any of them again.
        checkpoint: When the newest checkpoint was, which holds all of them: what they may lack counts from there, as
            priority saves hold but a few.
    """

    newest: Mapping[int, Progress] = field(default_factory=dict)
    checkpoint: Mapping[int, Progress] = field(default_factory=dict)
