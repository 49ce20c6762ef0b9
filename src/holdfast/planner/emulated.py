"""The result of an emulation: every strategy with every seed. Stored as JSON, for ``holdfast report``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.planner.job import Overheads
from holdfast.planner.recovery import Recovery
from holdfast.planner.schedule import Failure
from holdfast.policy.arguments import require, require_count, require_duration
from holdfast.policy.pls import require_pls

VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRun:
    """One training under one strategy."""

    seed: int
    overheads: Overheads  # of virtual time
    failures: tuple[Failure, ...]
    pls: float = 0.0  # used up in the end
    auc: float | None = None  # in the end; None: not measured
    auc_drop: float | None = None  # against the training with the same seed that nothing happened to

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse what ``asdict`` produced."""
        failures = tuple(_built(Failure, {**each, "servers": tuple(each["servers"])}) for each in data["failures"])
        return _built(cls, {**data, "overheads": _built(Overheads, data["overheads"]), "failures": failures})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedStrategy:
    """One way to survive failures, with every seed."""

    name: str
    recovery: Recovery
    interval_s: float | None  # between saves; None: none after the baseline
    runs: tuple[EmulatedRun, ...]

    @property
    def overheads(self) -> Overheads:
        """Their mean over the seeds."""
        count = len(self.runs)
        names = [field.name for field in fields(Overheads)]
        return Overheads(**{name: sum(getattr(run.overheads, name) for run in self.runs) / count for name in names})

    def mean(self, name: str) -> float | None:
        """The mean of ``pls``, ``auc`` or ``auc_drop``, over the seeds that measured it."""
        values = self.values(name)
        return math.fsum(values) / len(values) if values else None

    def values(self, name: str) -> list[float]:
        """Of the seeds that measured it."""
        return [value for run in self.runs if (value := getattr(run, name)) is not None]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``asdict``, with the recovery by its word."""
        runs = tuple(map(EmulatedRun.from_dict, data["runs"]))
        return _built(cls, {**data, "recovery": Recovery(data["recovery"]), "runs": runs})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedJob:
    """A virtual job and how each strategy fared in it."""

    title: str
    total_s: float  # of training, without overheads
    servers: int
    pls_budget: float | None
    strategies: tuple[EmulatedStrategy, ...]

    def __post_init__(self) -> None:
        require_duration(self, "total_s", self.total_s)
        require_count(self, "servers", self.servers)
        if self.pls_budget is not None:
            require_pls(self.pls_budget)
        names = [strategy.name for strategy in self.strategies]
        require(len(set(names)) == len(names) > 0, self, "strategies", "at least one, of different names", names)
        for strategy in self.strategies:
            require(len(strategy.runs) > 0, self, f"runs of {strategy.name}", "at least one", strategy.runs)
            for run in strategy.runs:
                finite = math.isfinite(run.overheads.total_s)
                require(finite, self, f"overheads of {strategy.name}", "finite", run.overheads)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        body = asdict(self)
        for strategy in body["strategies"]:
            strategy["recovery"] = strategy["recovery"].value
        return {"emulation": VERSION, **body}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The job that ``to_dict`` described; raises ConfigurationError where it is none."""
        try:
            if data["emulation"] != VERSION:
                raise ConfigurationError(f"emulation version {data['emulation']!r} is not known to this release")
            body = {key: value for key, value in data.items() if key != "emulation"}
            strategies = tuple(map(EmulatedStrategy.from_dict, data["strategies"]))
            return _built(cls, {**body, "strategies": strategies})
        except ConfigurationError:
            raise
        except KeyError as error:
            raise ConfigurationError(f"an emulation's result lacks {error}") from error
        except (TypeError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"this is not an emulation's result: {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The same from JSON text."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"an emulation's result is JSON, and this is not: {error}") from error
        return cls.from_dict(data)


def _built(kind: type[T], data: Mapping[str, Any]) -> T:
    """A value from its fields; those with a default may be missing."""
    if unknown := sorted(data.keys() - {field.name for field in fields(kind)}):  # type: ignore[arg-type]
        raise ConfigurationError(f"an emulation's result has unknown values: {', '.join(unknown)}")
    try:
        return kind(**data)
    except TypeError as error:
        raise ConfigurationError(f"an emulation's result is not complete: {error}") from error
