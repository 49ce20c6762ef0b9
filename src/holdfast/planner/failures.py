"""How long a job runs until it fails: distributions of the time to failure, as frozen values.

CPR (section 3.1) found that a gamma distribution fits a production cluster best, with a mean of 14 to 30 hours.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import ConfigurationError
from holdfast.planner.numerics import FloatArray, bisect, log_upper_gamma, normal_survival
from holdfast.policy.arguments import require_duration

_TINY = 1e-300
_standard_normal = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])


def _names(model: type[FailureModel]) -> tuple[str, ...]:
    """Its parameters, the one that scales with time last; all of them are above 0."""
    return tuple(field.name for field in fields(model))  # type: ignore[arg-type]  # every one is a dataclass


class FailureModel(ABC):
    """A distribution of times to failure. Functions take one time or an array and give an array of that shape."""

    __slots__ = ()

    @property
    @abstractmethod
    def mtbf_s(self) -> float:
        """The mean time between failures."""

    @abstractmethod
    def log_survival(self, times_s: ArrayLike) -> FloatArray:
        """log of the probability to run for longer than that."""

    @abstractmethod
    def log_density(self, times_s: ArrayLike) -> FloatArray:
        """log of the probability density of failing then; -inf at and before 0."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int | None = None) -> FloatArray:
        """Random times to failure."""

    @abstractmethod
    def _quantile(self, probability: FloatArray) -> FloatArray: ...

    def __post_init__(self) -> None:
        for name in _names(type(self)):
            require_duration(self, name, getattr(self, name))

    def parameters(self) -> tuple[float, ...]:
        """The logarithms of its parameters: any numbers are valid, which is what a search for the best fit needs."""
        return tuple(math.log(getattr(self, name)) for name in _names(type(self)))

    @classmethod
    def from_parameters(cls, values: ArrayLike) -> Self:
        """The model with these ``parameters()``."""
        return cls(**dict(zip(_names(cls), np.exp(np.asarray(values)).tolist(), strict=True)))

    def survival(self, times_s: ArrayLike) -> FloatArray:
        """The probability to run for longer than that."""
        return np.asarray(np.exp(self.log_survival(times_s)))

    def density(self, times_s: ArrayLike) -> FloatArray:
        """The probability of failing then, per second."""
        return np.asarray(np.exp(self.log_density(times_s)))

    def hazard(self, times_s: ArrayLike) -> FloatArray:
        """The probability of failing then, per second, of a job that has come that far."""
        return np.asarray(np.exp(self.log_density(times_s) - self.log_survival(times_s)))

    def quantile(self, probability: ArrayLike) -> FloatArray:
        """The time by which that share of jobs has failed (0.5: the median)."""
        shares = np.asarray(probability, dtype=np.float64)
        if not np.all((shares > 0) & (shares < 1)):
            raise ConfigurationError(
                f"{type(self).__name__}.quantile: pass probabilities between 0 and 1, got {probability!r}"
            )
        return self._quantile(shares)

    def scaled_to(self, mtbf_s: float) -> Self:
        """A model of the same form with another mean, such as that of a larger cluster."""
        require_duration(self, "mtbf_s", mtbf_s)
        *form, scale = self.parameters()
        return self.from_parameters([*form, scale + math.log(mtbf_s / self.mtbf_s)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(FailureModel):
    """Failures that do not depend on how long the job has run."""

    mean_s: float

    @property
    def mtbf_s(self) -> float:
        return self.mean_s

    def log_survival(self, times_s: ArrayLike) -> FloatArray:
        return -np.maximum(np.asarray(times_s, dtype=np.float64), 0) / self.mean_s

    def log_density(self, times_s: ArrayLike) -> FloatArray:
        return np.where(np.asarray(times_s) > 0, self.log_survival(times_s) - math.log(self.mean_s), -np.inf)

    def sample(self, rng: np.random.Generator, size: int | None = None) -> FloatArray:
        return np.asarray(rng.exponential(self.mean_s, size))

    def _quantile(self, probability: FloatArray) -> FloatArray:
        return np.asarray(-self.mean_s * np.log1p(-probability))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma(FailureModel):
    """With a shape below 1, a job is most likely to fail at its beginning and then at a nearly constant rate."""

    shape: float
    scale_s: float

    @property
    def mtbf_s(self) -> float:
        return self.shape * self.scale_s

    def log_survival(self, times_s: ArrayLike) -> FloatArray:
        return log_upper_gamma(self.shape, np.asarray(times_s, dtype=np.float64) / self.scale_s)

    def log_density(self, times_s: ArrayLike) -> FloatArray:
        times = np.asarray(times_s, dtype=np.float64)
        x = np.maximum(times / self.scale_s, _TINY)
        log_density = (self.shape - 1) * np.log(x) - x - math.lgamma(self.shape) - math.log(self.scale_s)
        return np.where(times > 0, log_density, -np.inf)

    def sample(self, rng: np.random.Generator, size: int | None = None) -> FloatArray:
        return np.asarray(rng.gamma(self.shape, self.scale_s, size))

    def _quantile(self, probability: FloatArray) -> FloatArray:
        """By bisection over log(time): there is no closed form."""
        target = np.log1p(-probability)
        ends = np.log([_TINY, self.shape + 100 * math.sqrt(self.shape) + 1000])
        low, high = (np.full_like(target, end) for end in ends)
        return self.scale_s * np.exp(bisect(lambda x: log_upper_gamma(self.shape, np.exp(x)) > target, low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weibull(FailureModel):
    """A failure rate that falls (shape below 1) or rises with a power of the time."""

    shape: float
    scale_s: float

    @property
    def mtbf_s(self) -> float:
        return self.scale_s * math.gamma(1 + 1 / self.shape)

    def log_survival(self, times_s: ArrayLike) -> FloatArray:
        return -((np.maximum(np.asarray(times_s, dtype=np.float64), 0) / self.scale_s) ** self.shape)

    def log_density(self, times_s: ArrayLike) -> FloatArray:
        times = np.asarray(times_s, dtype=np.float64)
        log_x = np.log(np.maximum(times / self.scale_s, _TINY))
        log_density = math.log(self.shape / self.scale_s) + (self.shape - 1) * log_x + self.log_survival(times)
        return np.where(times > 0, log_density, -np.inf)

    def sample(self, rng: np.random.Generator, size: int | None = None) -> FloatArray:
        return np.asarray(self.scale_s * rng.weibull(self.shape, size))

    def _quantile(self, probability: FloatArray) -> FloatArray:
        return np.asarray(self.scale_s * (-np.log1p(-probability)) ** (1 / self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal(FailureModel):
    """Times whose logarithms are normally distributed: the heaviest tail of the four."""

    sigma: float
    median_s: float

    @property
    def mtbf_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    def log_survival(self, times_s: ArrayLike) -> FloatArray:
        return np.asarray(np.log(np.maximum(normal_survival(self._z(times_s)), _TINY)))

    def log_density(self, times_s: ArrayLike) -> FloatArray:
        times = np.asarray(times_s, dtype=np.float64)
        log_density = -(self._z(times) ** 2) / 2 - np.log(
            np.maximum(times, _TINY) * self.sigma * math.sqrt(2 * math.pi)
        )
        return np.where(times > 0, log_density, -np.inf)

    def sample(self, rng: np.random.Generator, size: int | None = None) -> FloatArray:
        return np.asarray(rng.lognormal(math.log(self.median_s), self.sigma, size))

    def _z(self, times_s: ArrayLike) -> FloatArray:
        times = np.maximum(np.asarray(times_s, dtype=np.float64), _TINY)
        return np.asarray((np.log(times) - math.log(self.median_s)) / self.sigma)

    def _quantile(self, probability: FloatArray) -> FloatArray:
        return np.asarray(self.median_s * np.exp(self.sigma * _standard_normal(probability)))


FAMILIES: tuple[type[FailureModel], ...] = (Exponential, Gamma, Weibull, LogNormal)
