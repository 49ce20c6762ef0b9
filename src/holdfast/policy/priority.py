"""Which rows to save first between two consistent checkpoints (CPR, section 4.2).

Instead of N rows every T_save, r·N of them every r·T_save: those that a failure would set back furthest. That distance
can be measured (SCAR), estimated from how often a row is used (MFU), or sampled (SSU).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import is_finite_number, require, require_count
from holdfast.policy.base import Policy, registered

LARGEST_SHARE = 0.99  # of the bytes of all tables: those that rows are chosen of; the others are saved whole


class Priority(Policy, ABC):
    """Chooses a share ``r`` of the rows of each large table, every ``r`` save intervals."""

    __slots__ = ()

    r: float

    def __post_init__(self) -> None:
        fits = is_finite_number(self.r) and 0 < self.r <= 1
        require(fits, self, "r", "above 0 and at most 1", self.r)

    def rows(self, rows: int) -> int:
        """How many rows of a table are saved at a time, at most.

        Args:
            rows: The table's number of rows.
        """
        return min(rows, max(1, int(self.r * rows)))


@registered("scar")
@dataclass(frozen=True, slots=True)
class SCAR(Priority):
    """The rows that have moved furthest (L2) since they were last saved: exact, but needs a second copy of the weights.

    Args:
        r: The share, above 0 and at most 1.
    """

    r: float = 0.125


@registered("mfu")
@dataclass(frozen=True, slots=True)
class MFU(Priority):
    """The rows used most often since they were last saved: a four-byte counter per row.

    Args:
        r: The share, above 0 and at most 1.
    """

    r: float = 0.125


@registered("ssu")
@dataclass(frozen=True, slots=True)
class SSU(Priority):
    """Rows used in every ``period``-th sample, at most the share ``r`` of them; the excess is dropped at random.

    Args:
        r: The share, above 0 and at most 1.
        period: Sample every use (1), every second one (2), and so on.
        seed: Seed for the sampling and dropping.
    """

    r: float = 0.125
    period: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        Priority.__post_init__(self)
        require_count(self, "period", self.period)
        whole = isinstance(self.seed, int) and not isinstance(self.seed, bool) and self.seed >= 0
        require(whole, self, "seed", "a whole number of at least 0", self.seed)


def largest(size_bytes: Mapping[str, int], share: float = LARGEST_SHARE) -> frozenset[str]:
    """The fewest tables that together make up ``share`` of the bytes; of equal ones the first by name."""
    if not 0 < share <= 1:
        raise ConfigurationError(f"a share of the tables' bytes is above 0 and at most 1, got {share!r}")
    wanted = share * sum(size_bytes.values())
    chosen: set[str] = set()
    held = 0
    for name in sorted(size_bytes, key=lambda each: (-size_bytes[each], each)):
        if held >= wanted:
            break
        chosen.add(name)
        held += size_bytes[name]
    return frozenset(chosen)
