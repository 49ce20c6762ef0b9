"""Which tables of a model live on servers, and how their rows begin: plain values that every process can read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.base import Policy, registered
from holdfast.types import Start, StartKind

_FLOAT32_MAX = 3.4028234663852886e38


class Init(Policy, ABC):
    """How the rows of a table begin."""

    __slots__ = ()

    @abstractmethod
    def start(self) -> Start:
        """What servers compute."""


@registered("uniform")
@dataclass(frozen=True, slots=True)
class Uniform(Init):
    """Values drawn evenly from ``low`` to ``high``.

    Args:
        low: The least value.
        high: No value is above it; not below ``low``.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_float(self, "low", self.low)
        _require_float(self, "high", self.high)
        require(self.low <= self.high, self, "high", f"at least low, {self.low}", self.high)

    def start(self) -> Start:
        return Start(kind=StartKind.UNIFORM, first=self.low, second=self.high)


@registered("normal")
@dataclass(frozen=True, slots=True)
class Normal(Init):
    """Values drawn from a normal distribution.

    Args:
        mean: Their mean.
        std: Their standard deviation, at least 0.
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _require_float(self, "mean", self.mean)
        _require_float(self, "std", self.std)
        require(self.std >= 0, self, "std", "at least 0", self.std)

    def start(self) -> Start:
        return Start(kind=StartKind.NORMAL, first=self.mean, second=self.std)


@registered("constant")
@dataclass(frozen=True, slots=True)
class Constant(Init):
    """The same value everywhere.

    Args:
        value: That value.
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        _require_float(self, "value", self.value)

    def start(self) -> Start:
        return Start(kind=StartKind.CONSTANT, first=self.value)


@registered("tables")
@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(Policy):
    """Which ``nn.Embedding`` and ``nn.EmbeddingBag`` live on servers, and how their rows begin.

    A row's start depends on the seed, the table's name and the row alone, not on where it lives. The row of a
    ``padding_idx`` begins as zeros in any case.

    Args:
        min_bytes: Tables with at least this many bytes of weights live on servers; smaller ones are dense parameters.
        init: For all tables, or by name: ``{"user.*": Uniform(-0.01, 0.01)}``, in which the first pattern that matches
            counts. A table that none matches begins as torch's modules do, with ``Normal(0, 1)``.
        seed: From which rows are drawn.
    """

    min_bytes: int = 1 << 20
    init: Init | Mapping[str, Init] | tuple[tuple[str, Init], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _require_whole(self, "min_bytes", self.min_bytes)
        _require_whole(self, "seed", self.seed)
        pairs = (("*", self.init),) if isinstance(self.init, Init) else self.init
        pairs = tuple(pairs.items()) if isinstance(pairs, Mapping) else pairs
        object.__setattr__(self, "init", pairs)
        require(isinstance(pairs, tuple), self, "init", "an init such as Uniform(-0.1, 0.1), or several by name", pairs)
        for pair in pairs:
            fits = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Init)
            require(fits, self, "init", "an init such as Uniform(-0.1, 0.1) for each name pattern", pair)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Of names with an init of their own."""
        return tuple(pattern for pattern, _ in self._inits)

    def init_of(self, name: str) -> Init:
        """How the rows of a table begin.

        Args:
            name: Of the module, or of its weight: ``user`` and ``user.weight`` are the same table.
        """
        names = {name, name.removesuffix(".weight")}
        found = (init for pattern, init in self._inits if any(fnmatchcase(each, pattern) for each in names))
        return next(found, Normal())

    @property
    def _inits(self) -> tuple[tuple[str, Init], ...]:
        assert isinstance(self.init, tuple)
        return self.init


def tables(
    *, min_bytes: int = 1 << 20, init: Init | Mapping[str, Init] | tuple[tuple[str, Init], ...] = (), seed: int = 0
) -> Tables:
    """Declare which tables live on servers, and how their rows begin.

    Args:
        min_bytes: Tables with at least this many bytes of weights live on servers; smaller ones are dense parameters.
        init: For all tables, or by name pattern, the first that matches; otherwise ``Normal(0, 1)``.
        seed: From which rows are drawn.
    """
    return Tables(min_bytes=min_bytes, init=init, seed=seed)


def _require_float(owner: object, name: str, value: object) -> None:
    fits = is_finite_number(value) and abs(value) <= _FLOAT32_MAX  # type: ignore[arg-type]
    require(fits, owner, name, "a number that float32 can hold", value)


def _require_whole(owner: object, name: str, value: object) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(fits, owner, name, "a whole number of at least 0", value)
