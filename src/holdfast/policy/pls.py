"""The portion of lost samples (CPR, section 4.1): how much of what was learnt partial recoveries have lost.

CPR found that final accuracy falls linearly with it, regardless of how many failures there were and how large a part
each one hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from holdfast.errors import ConfigurationError
from holdfast.figures import number
from holdfast.policy.arguments import is_finite_number, require, require_count


def require_pls(pls: float) -> None:
    """Refuse a value that is not a valid PLS budget."""
    if not is_finite_number(pls) or not 0 < pls <= 1:
        raise ConfigurationError(
            f"a PLS budget must be above 0 and at most 1, got {pls!r}; 0.1 suits many jobs, and if nothing may be "
            "lost use full recovery"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlsMeter:
    """What a training has lost so far. An immutable value: each event returns the next one; checkpoints store it.

    A full recovery restores the checkpoint's meter: what was lost later is trained again.
    """

    total_samples: int  # of the whole training
    pls: float = 0.0
    saved_samples: int = 0  # trained when the newest save was taken; a baseline exists at 0
    failures: int = 0
    budget: float | None = None
    warn_at: float = 0.8  # of the budget

    def __post_init__(self) -> None:
        require_count(self, "total_samples", self.total_samples)
        require(is_finite_number(self.pls) and self.pls >= 0, self, "pls", "at least 0", self.pls)
        for name in ("saved_samples", "failures"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            require(whole, self, name, "a whole number of at least 0", value)
        if self.budget is not None:
            require_pls(self.budget)
        fits = is_finite_number(self.warn_at) and 0 < self.warn_at <= 1
        require(fits, self, "warn_at", "above 0 and at most 1", self.warn_at)

    def saved(self, samples: int) -> Self:
        """A full save was taken after this many samples."""
        self._require_not_before_save(samples)
        return replace(self, saved_samples=samples)

    def failed(self, samples: int, *, lost_share: float) -> Self:
        """Equation 3: a failure after this many samples set a share of the tables back to the last save."""
        self._require_not_before_save(samples)
        fits = is_finite_number(lost_share) and 0 < lost_share <= 1
        require(fits, self, "lost_share", "above 0 and at most 1", lost_share)
        lost = lost_share * (samples - self.saved_samples) / self.total_samples
        return replace(self, pls=self.pls + lost, failures=self.failures + 1)

    @property
    def used(self) -> float:
        """The share of the budget that is used up; 0 without one."""
        return self.pls / self.budget if self.budget else 0.0

    @property
    def is_near(self) -> bool:
        """Whether the budget is nearly used up, or is."""
        return self.used >= self.warn_at

    @property
    def is_over(self) -> bool:
        """Whether more was lost than the budget allows."""
        return self.used > 1

    @property
    def warning(self) -> str | None:
        """The warning to log, if any."""
        if self.budget is None or not self.is_near:
            return None
        state = "is used up" if self.is_over else f"is {self.used:.0%} used"
        return (
            f"the PLS budget of {number(self.budget)} {state}: {self.failures} failures lost {number(self.pls)} of "
            "the samples' effect; save more often, or recover fully from the next failure"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint's state."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The meter that ``to_dict`` described."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise ConfigurationError(f"a stored PLS meter has unknown values: {', '.join(unknown)}")
        if missing := sorted(known - data.keys()):
            raise ConfigurationError(f"a stored PLS meter lacks {', '.join(missing)}")
        return cls(**data)

    def _require_not_before_save(self, samples: int) -> None:
        if not self.saved_samples <= samples <= self.total_samples:
            raise ConfigurationError(
                f"PlsMeter: {samples} samples are not between the last save's {self.saved_samples} and the training's "
                f"{self.total_samples}; after going back, use the meter of the checkpoint"
            )
