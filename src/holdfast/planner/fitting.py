"""Fits the failure model of a cluster to the jobs that ran on it, including those that ended well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import ConfigurationError
from holdfast.planner.failures import FAMILIES, FailureModel
from holdfast.planner.numerics import FloatArray, minimise
from holdfast.policy.arguments import is_finite_number

LEAST_FAILURES: Final = 5
"""Below this a curve of two parameters says more about chance than about the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """How long jobs ran, and which of them failed; the others ended or are still running ("censored").

    Leaving the censored jobs out, as CPR does, makes failures look more frequent than they are.
    """

    failed_s: tuple[float, ...]
    censored_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("failed_s", "censored_s"):
            for time_s in getattr(self, name):
                if not is_finite_number(time_s) or time_s <= 0:
                    raise ConfigurationError(
                        f"JobHistory: {name} must hold finite times above 0, got {time_s!r}; "
                        "leave out jobs that never started"
                    )

    @classmethod
    def of(cls, times_s: ArrayLike, failed: ArrayLike) -> Self:
        """From one list of running times and one of flags."""
        times, flags = np.asarray(times_s, dtype=np.float64), np.asarray(failed, dtype=bool)
        if times.shape != flags.shape or times.ndim != 1:
            raise ConfigurationError(f"JobHistory: {times.shape} times and {flags.shape} flags; pass one flag per job")
        return cls(failed_s=tuple(times[flags].tolist()), censored_s=tuple(times[~flags].tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Kaplan and Meier's estimate: the share of jobs that survive each time at which some failed."""

    times_s: FloatArray
    survival: FloatArray  # just after that time; 1 before the first

    @property
    def midpoints(self) -> FloatArray:
        """Between the survival just before each time and just after: where a smooth curve should pass."""
        return np.asarray((np.concatenate([[1.0], self.survival[:-1]]) + self.survival) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A failure model and how well it describes a history."""

    model: FailureModel
    log_likelihood: float
    rmse: float  # of its survival curve against Kaplan and Meier's

    @property
    def name(self) -> str:
        """The name of the distribution family."""
        return type(self.model).__name__

    @property
    def aic(self) -> float:
        """Akaike's criterion: less is better; a parameter more must earn its place."""
        return 2 * len(self.model.parameters()) - 2 * self.log_likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCurves:
    """What a plot of fits draws (CPR, figure 3): survival and failure rate over time."""

    observed: Survival
    times_s: FloatArray
    survival: Mapping[str, FloatArray]  # by family
    hazard_per_s: Mapping[str, FloatArray]


def kaplan_meier(history: JobHistory) -> Survival:
    """The survival curve that assumes nothing. A job censored at a failure's time still counts as at risk then."""
    failed = np.sort(np.asarray(history.failed_s))
    times, deaths = np.unique(failed, return_counts=True)
    everyone = np.sort(np.concatenate([failed, np.asarray(history.censored_s)]))
    at_risk = len(everyone) - np.searchsorted(everyone, times, side="left")
    return Survival(times_s=times, survival=np.cumprod(1 - deaths / at_risk, dtype=np.float64))


def fit(family: type[FailureModel], history: JobHistory) -> Fit:
    """The model of a family under which the history is most likely."""
    _require_enough(history)
    times = np.asarray(history.failed_s)
    censored = np.asarray(history.censored_s)

    def loss(parameters: FloatArray) -> float:
        return -_log_likelihood(family, parameters, times, censored)

    best = minimise(loss, _start(family, times, censored))
    model = family.from_parameters(best)
    return Fit(model=model, log_likelihood=-loss(best), rmse=survival_rmse(model, history))


def fit_all(history: JobHistory, *, by: Literal["aic", "rmse"] = "aic") -> list[Fit]:
    """Every family, the best first: by likelihood (which counts censored jobs), or by RMSE as CPR compares them."""
    if by not in ("aic", "rmse"):
        raise ConfigurationError(f'fits are ordered by "aic" or "rmse", not by {by!r}')
    return sorted((fit(family, history) for family in FAMILIES), key=lambda each: float(getattr(each, by)))


def survival_rmse(model: FailureModel, history: JobHistory) -> float:
    """How far the model's survival curve is from the observed one, at the times at which jobs failed."""
    observed = kaplan_meier(history)
    return float(np.sqrt(np.mean((model.survival(observed.times_s) - observed.midpoints) ** 2)))


def fit_curves(history: JobHistory, fits: Sequence[Fit], *, points: int = 200) -> FitCurves:
    """What to draw, from near 0 to the longest job."""
    end_s = max(*history.failed_s, *history.censored_s, 0.0)
    times = np.linspace(end_s / points, end_s, points)
    return FitCurves(
        observed=kaplan_meier(history),
        times_s=times,
        survival={each.name: each.model.survival(times) for each in fits},
        hazard_per_s={each.name: each.model.hazard(times) for each in fits},
    )


def _require_enough(history: JobHistory) -> None:
    if len(history.failed_s) < LEAST_FAILURES:
        raise ConfigurationError(
            f"{len(history.failed_s)} failures are too few to fit a distribution: collect at least {LEAST_FAILURES}, "
            "or plan with Exponential(mean_s=...)"
        )
    if min(history.failed_s) == max(history.failed_s):
        raise ConfigurationError(
            f"all {len(history.failed_s)} failures came after {history.failed_s[0]:g} s, so their spread is unknown: "
            "pass the times as measured, not rounded"
        )


def _log_likelihood(
    family: type[FailureModel], parameters: FloatArray, times: FloatArray, censored: FloatArray
) -> float:
    with np.errstate(all="ignore"):  # a search may look where densities vanish
        try:
            model = family.from_parameters(parameters)
        except ConfigurationError:
            return -math.inf
        value = float(model.log_density(times).sum() + model.log_survival(censored).sum())
    return value if math.isfinite(value) else -math.inf


def _start(family: type[FailureModel], times: FloatArray, censored: FloatArray) -> FloatArray:
    """A mean that counts the censored jobs' time; the form of an exponential distribution."""
    mean = (times.sum() + censored.sum()) / len(times)
    form = [0.0] * (len(fields(family)) - 1)  # type: ignore[arg-type]  # every one is a dataclass
    return np.asarray([*form, math.log(mean)])
