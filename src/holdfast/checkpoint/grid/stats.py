"""Counters of the rearranging."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class GridStats:
    """What rearranging has done so far, and what a restore of the newest checkpoint would read."""

    rounds: int = 0
    bundles: int = 0  # that were rearranged
    rows_moved: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    read_s: float = 0.0
    postponed: int = 0  # rounds that let a save go first
    saves_beside: int = 0  # saves that began while a round was under way or due
    range_skips: int = 0
    membership_skips: int = 0
    actual_skips: int = 0
    extractions: int = 0
    index_bytes: int = 0
    bytes_above_baseline: int = 0

    def to_json(self) -> dict[str, float]:
        """As JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
