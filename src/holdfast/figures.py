"""Numbers for people to read, in pages, commands and messages; never in calculator notation (``1e+03``)."""

from __future__ import annotations

import math

NOTHING = "-"
DIGITS = 3
_POSITIONAL = range(-6, 7)  # powers of ten that are written out
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = DIGITS) -> str:
    """A value rounded to ``digits`` significant digits; all digits before the decimal point are written."""
    if value is None:
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}".replace("-0", "0")
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    if int(power) in _POSITIONAL:
        return _trimmed(f"{value:,.{max(0, digits - 1 - int(power))}f}")
    return f"{_trimmed(mantissa)} × {power_of_ten(int(power))}"


def power_of_ten(power: int) -> str:
    """A power of ten with a superscript: ``10⁻⁷``."""
    return f"10{str(power).translate(_SUPERSCRIPT)}"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
