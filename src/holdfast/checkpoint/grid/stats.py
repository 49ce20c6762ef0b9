"""Counters of the rearranging."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class GridStats:
    """What rearranging has done so far, and what a restore of the newest checkpoint would read.

    Args:
        rounds: Rounds completed.
        bundles: Bundles rearranged.
        rows_moved: Rows written to new bundles.
        read_bytes: Bytes read.
        written_bytes: Bytes written.
        seconds: Time spent.
        read_s: Time spent reading.
        postponed: Rounds that let a save go first.
        saves_beside: Saves that began while a round was in progress or due.
        range_skips: Bundles skipped because their row range was not touched (Pairs).
        membership_skips: Bundles skipped because too little was replaced, by the index (Pairs).
        actual_skips: Bundles skipped because too little was replaced, by the stored ids (Pairs).
        extractions: Bundles that were due (Pairs).
        index_bytes: Memory used by the index of newest records.
        bytes_above_baseline: Bytes above the baseline that a restore of the newest checkpoint reads.
    """

    rounds: int = 0
    bundles: int = 0
    rows_moved: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    read_s: float = 0.0
    postponed: int = 0
    saves_beside: int = 0
    range_skips: int = 0
    membership_skips: int = 0
    actual_skips: int = 0
    extractions: int = 0
    index_bytes: int = 0
    bytes_above_baseline: int = 0

    def to_json(self) -> dict[str, float]:
        """The counters by name, as the agent sends them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
