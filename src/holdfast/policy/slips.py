"""What a plain value probably meant where a policy is expected: ``save=1000``, ``save="10m"``, ``retention=3``."""

from __future__ import annotations

import re

from holdfast.policy.arguments import is_finite_number
from holdfast.policy.overlap import Overlap
from holdfast.policy.precision import BITS

_MINUTES = {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 24 * 60.0}  # by a unit's first letter
_SPAN = re.compile(r"([0-9.]+)\s*(s|m|h|d|seconds?|secs?|minutes?|mins?|hours?|days?)", re.IGNORECASE)
_STEPS = re.compile(r"([0-9_,]+)\s*(steps?)?", re.IGNORECASE)


def meant_by(argument: str, value: object) -> str | None:
    """The call that a user would write for a plain value of an argument; None if it is unclear."""
    match argument:
        case "save":
            return _save(value)
        case "retention":
            return f"hf.KeepLast({value})" if _is_count(value) else None
        case "precision":
            return f"hf.Bits({value})" if _is_count(value) and value in BITS else None
        case "overlap":
            names = [each.name for each in Overlap if isinstance(value, str) and each.name == value.upper()]
            return f"hf.Overlap.{names[0]}" if names else None
    return None


def _save(value: object) -> str | None:
    if value is None or value is False:
        return "hf.Never()"
    if _is_count(value):
        return f"hf.EverySteps({value})"
    minutes = _minutes(value)
    if minutes is not None:
        return f"hf.EveryMinutes({minutes:g})" if minutes > 0 else None
    if isinstance(value, str) and (steps := _STEPS.fullmatch(value.strip())):
        return f"hf.EverySteps({steps[1].replace(',', '').replace('_', '')})"
    return None


def _minutes(value: object) -> float | None:
    """Minutes of a timedelta (recognised by its method: policies know no clock) or of text such as ``10m``."""
    if callable(seconds := getattr(value, "total_seconds", None)):
        return float(seconds()) / 60
    if isinstance(value, str) and (span := _SPAN.fullmatch(value.strip())):
        number = _number(span[1])
        return None if number is None else number * _MINUTES[span[2][0].lower()]
    return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_count(value: object) -> bool:
    return is_finite_number(value) and isinstance(value, int) and value >= 1
