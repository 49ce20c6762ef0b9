"""Where a training is in its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ReaderState = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """How to continue: with which batch, and with which random numbers."""

    reader: ReaderState | None
    rng: Mapping[str, Any] | None  # None: those of the moment


NOWHERE = DataPlace(reader=None, rng=None)
