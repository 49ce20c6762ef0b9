"""What parity does for the failures of an emulated job: which of them it repairs, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.planner.job import Overheads
from holdfast.planner.parity import ParityPrice
from holdfast.planner.schedule import Failure
from holdfast.policy.arguments import is_finite_number, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """Parity over all servers, which repairs what it can while training goes on.

    Args:
        price: The parity, at its rates.
        repair_s: Until redundancy is whole again after a failure.
    """

    price: ParityPrice
    repair_s: float

    def __post_init__(self) -> None:
        fits = is_finite_number(self.repair_s) and self.repair_s >= 0
        require(fits, self, "repair_s", "a finite number of at least 0", self.repair_s)

    def repaired(self, failures: Sequence[Failure]) -> tuple[bool, ...]:
        """Of each failure, in order: whether no more servers lack their rows at a time than there are parities."""
        found = []
        for index, failure in enumerate(failures):
            lacking = set(failure.servers)
            for before in failures[:index]:
                lacking |= set(before.servers) if failure.at_s - before.at_s < self.repair_s else set()
            found.append(len(lacking) <= self.price.parity.parity)
        return tuple(found)

    def standing(self, total_s: float) -> Overheads:
        """What keeping parities up to date takes of a whole job."""
        return self.price.overheads(total_s=total_s, failures=0.0, window_s=0.0)

    def of_failure(self) -> Overheads:
        """What a failure that is repaired takes: training is slower meanwhile."""
        return self.price.overheads(total_s=0.0, failures=1.0, window_s=self.repair_s)
