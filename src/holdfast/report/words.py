"""How values are written on a page; never in calculator notation (``1e+03``).

Times are in UTC: a page may be read far from where it was made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

NOTHING = "-"
_DIGITS = 3
_POSITIONAL = range(-6, 7)  # powers of ten that are written out
_ON_AN_AXIS = range(-3, 6)  # fewer, for there is little room
_SMALLEST = -307  # power of ten that a number divides by without losing digits
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What values are counted in, once they are ``least`` of it."""

    name: str
    factor: float
    least: float = 1.0

    def number(self, value: float, digits: int = _DIGITS) -> str:
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


def number(value: float | None, digits: int = _DIGITS) -> str:
    """A measured value to so many digits; those before the point are all written."""
    if value is None:
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}".replace("-0", "0")
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    if int(power) in _POSITIONAL:
        return _trimmed(f"{value:,.{max(0, digits - 1 - int(power))}f}")
    return f"{_trimmed(mantissa)} × {power_of_ten(int(power))}"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def power_of_ten(power: int) -> str:
    """As it is written by hand."""
    return f"10{str(power).translate(_SUPERSCRIPT)}"


def count(number: int) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"


def how_many(number_of: int, noun: str) -> str:
    """So many of them."""
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def percent(part: float, whole: float) -> str:
    """A part of a whole."""
    return f"{number(100 * part / whole)}%" if whole else NOTHING


def times(many: float, few: float) -> str:
    """How many times more."""
    return f"{number(many / few)}×" if few else NOTHING


def spread(mean: float, error: float) -> str:
    """A mean and its standard error."""
    return f"{number(mean)} ± {number(error, 1)}"


def size(size_bytes: float) -> str:
    """Bytes."""
    return byte_unit([size_bytes]).number(size_bytes)


def duration(seconds: float | None) -> str:
    """A time span."""
    return NOTHING if seconds is None else time_unit([seconds]).number(seconds)


def when(seconds: float) -> str:
    """A moment."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def byte_unit(sizes: Iterable[float]) -> Unit:
    """In which the largest of them reads well."""
    return _unit(sizes, _BYTES, zero=_BYTES[0])


def time_unit(seconds: Iterable[float]) -> Unit:
    """In which the longest of them reads well."""
    return _unit(seconds, _SECONDS, zero=_SECONDS[2])


def plain_unit(values: Iterable[float]) -> Unit:
    """A power of ten in which the largest of them needs few zeros; its name is empty where that is one."""
    largest = max(map(abs, values), default=0.0)
    power = max(_SMALLEST, int(f"{largest:.2e}".partition("e")[2]))
    if power in _ON_AN_AXIS:
        return Unit(name="", factor=1.0)
    return Unit(name=power_of_ten(power), factor=float(f"1e{power}"))


def in_units(title: str, unit: Unit) -> str:
    """The title of an axis whose numbers are so many of a unit that may have no name."""
    return ", ".join(part for part in (title, unit.name and f"in units of {unit.name}") if part)


def _unit(values: Iterable[float], units: Sequence[Unit], *, zero: Unit) -> Unit:
    """Chosen by the rounded number, so that a value just below a unit is not a thousand of the one below."""
    largest = max(map(abs, values), default=0.0)
    if not largest:
        return zero
    return next((unit for unit in reversed(units) if float(f"{largest / unit.factor:.2e}") >= unit.least), units[0])


def finite(value: float | None) -> float | None:
    """A value that can be drawn."""
    return value if value is not None and math.isfinite(value) else None
