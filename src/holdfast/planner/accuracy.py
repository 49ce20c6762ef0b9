"""From PLS to accuracy: a line fitted to trainings that lost something, so that a budget can be given as accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import is_finite_number, require

LEAST_RUNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyLine:
    """loss of accuracy = intercept + slope · PLS (CPR, figures 11 and 12)."""

    slope: float
    intercept: float = 0.0
    slope_error: float = math.nan  # the standard error of the slope, where it was fitted
    correlation: float = math.nan

    def __post_init__(self) -> None:
        for name in ("slope", "intercept"):
            value = getattr(self, name)
            require(is_finite_number(value), self, name, "a finite number", value)

    @classmethod
    def fit(cls, pls: ArrayLike, accuracy_loss: ArrayLike) -> Self:
        """Least squares over trainings: the PLS of each, and how much worse it ended than without failures."""
        x, y = np.asarray(pls, dtype=np.float64), np.asarray(accuracy_loss, dtype=np.float64)
        if x.shape != y.shape or x.ndim != 1 or len(x) < LEAST_RUNS:
            raise ConfigurationError(
                f"AccuracyLine: {x.size} PLS values and {y.size} losses; a line needs both from at least {LEAST_RUNS} "
                "trainings"
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0:
            raise ConfigurationError("AccuracyLine: pass finite values from trainings with different PLS")
        slope, intercept = np.polyfit(x, y, 1)
        residual = y - intercept - slope * x
        spread = float(((x - x.mean()) ** 2).sum())
        error = math.sqrt(float((residual**2).sum()) / (len(x) - 2) / spread)
        correlation = float(np.corrcoef(x, y)[0, 1]) if np.ptp(y) > 0 else 0.0
        return cls(slope=float(slope), intercept=float(intercept), slope_error=error, correlation=correlation)

    def loss_at(self, pls: float) -> float:
        """The accuracy that a PLS costs."""
        return self.intercept + self.slope * pls

    def pls_for(self, accuracy_loss: float) -> float:
        """The PLS budget (at most 1) that keeps the loss of accuracy within a limit."""
        require(is_finite_number(accuracy_loss), self, "accuracy_loss", "a finite number", accuracy_loss)
        if self.slope <= 0:
            raise ConfigurationError(
                f"AccuracyLine: with a slope of {self.slope:g} accuracy does not fall with PLS, so there is no budget "
                "to derive; fit it to more trainings, or pass a PLS"
            )
        pls = (accuracy_loss - self.intercept) / self.slope
        if pls <= 0:
            raise ConfigurationError(
                f"AccuracyLine: a loss of {accuracy_loss:g} leaves no PLS to spend (zero PLS already costs "
                f"{self.intercept:g}); allow more, or recover fully"
            )
        return min(pls, 1.0)
