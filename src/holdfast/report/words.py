"""How values are written on a page.

Times are in UTC: a page may be read far from where it was made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.figures import DIGITS, NOTHING, number, power_of_ten

_ON_AN_AXIS = range(-3, 6)  # fewer, for there is little room
_SMALLEST = -307  # power of ten that a number divides by without losing digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit, used for values of at least ``least`` of it."""

    name: str
    factor: float
    least: float = 1.0

    def number(self, value: float, digits: int = DIGITS) -> str:
        """A value with its unit."""
        return f"{number(value / self.factor, digits)} {self.name}"


_BYTES = tuple(Unit(name=name, factor=1000.0**power) for power, name in enumerate(("B", "kB", "MB", "GB", "TB", "PB")))
_SECONDS = (
    Unit(name="µs", factor=1e-6),
    Unit(name="ms", factor=1e-3),
    Unit(name="s", factor=1.0),
    Unit(name="min", factor=60.0, least=2.0),
    Unit(name="h", factor=3600.0, least=2.0),
    Unit(name="days", factor=86400.0, least=4.0),
)


def count(number: int) -> str:
    """A number with thousands separators."""
    return f"{number:,}"


def how_many(number_of: int, noun: str) -> str:
    """A count and its noun, in the plural where needed."""
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def percent(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{number(100 * part / whole)}%" if whole else NOTHING


def times(many: float, few: float) -> str:
    """A ratio, as in 4×."""
    return f"{number(many / few)}×" if few else NOTHING


def spread(mean: float, error: float) -> str:
    """A mean and its standard error."""
    return f"{number(mean)} ± {number(error, 1)}"


def size(size_bytes: float) -> str:
    """A number of bytes, in the unit that suits it."""
    return byte_unit([size_bytes]).number(size_bytes)


def duration(seconds: float | None) -> str:
    """A duration, in the unit that suits it."""
    return NOTHING if seconds is None else time_unit([seconds]).number(seconds)


def when(seconds: float) -> str:
    """A time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def byte_unit(sizes: Iterable[float]) -> Unit:
    """The unit in which the largest size reads well."""
    return _unit(sizes, _BYTES, zero=_BYTES[0])


def time_unit(seconds: Iterable[float]) -> Unit:
    """The unit in which the longest duration reads well."""
    return _unit(seconds, _SECONDS, zero=_SECONDS[2])


def plain_unit(values: Iterable[float]) -> Unit:
    """A power of ten in which the largest value needs few zeros; unnamed if that is 1."""
    largest = max(map(abs, values), default=0.0)
    power = max(_SMALLEST, int(f"{largest:.2e}".partition("e")[2]))
    if power in _ON_AN_AXIS:
        return Unit(name="", factor=1.0)
    return Unit(name=power_of_ten(power), factor=float(f"1e{power}"))


def in_units(title: str, unit: Unit) -> str:
    """An axis title with its unit, if that has a name."""
    return ", ".join(part for part in (title, unit.name and f"in units of {unit.name}") if part)


def _unit(values: Iterable[float], units: Sequence[Unit], *, zero: Unit) -> Unit:
    """Chosen by the rounded value, so 999.9 kB becomes 1 MB and not 1,000 kB."""
    largest = max(map(abs, values), default=0.0)
    if not largest:
        return zero
    return next((unit for unit in reversed(units) if float(f"{largest / unit.factor:.2e}") >= unit.least), units[0])


def finite(value: float | None) -> float | None:
    """The value if it can be drawn, else None."""
    return value if value is not None and math.isfinite(value) else None
